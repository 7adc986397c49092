package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// cniMain is the plugin.
func cniMain() int {
	answer, err := shim()
	if err != nil {
		_ = types.NewError(types.ErrInternal, err.Error(), "").Print()
		return 1
	}
	_, _ = os.Stdout.Write(answer)
	return 0
}

func shim() ([]byte, error) {
	command := os.Getenv("CNI_COMMAND")
	switch command {
	case "VERSION":
		return json.Marshal(version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"))
	case "CHECK": // nothing is looked at
		return nil, nil
	}
	config, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	var conf netConf
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, fmt.Errorf("invalid stdin args: %w", err)
	}
	if conf.Type != pluginName {
		return nil, errUnmanaged
	}
	if command == "GC" {
		return nil, nil
	}
	req := cniRequest{Env: map[string]string{}, Config: config}
	for _, kv := range os.Environ() {
		if key, value, _ := strings.Cut(kv, "="); strings.HasPrefix(key, "CNI_") {
			req.Env[key] = value
		}
	}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socketPath)
	}}}
	resp, err := client.Post("http://ovnkube/", "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("failed to send CNI request: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("CNI request failed with status %d: '%s'", resp.StatusCode, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}
