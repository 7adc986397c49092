package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// attachment is what later checks ask of an attachment of the running engine.
type attachment = api.Status

func (e *examination) checkEngine(ctx context.Context) ([]Finding, string) {
	found := e.socketFile()
	client := api.Client{Socket: e.cfg.Socket}
	if err := healthy(ctx, client); err != nil {
		return append(found, noEngine(e.cfg.Socket, err)), ""
	}
	found = append(found, readiness(client.Ready(ctx), client.Status(ctx))...)
	var err error
	if e.attachments, err = client.List(ctx); err != nil {
		found = append(found, Finding{EngineNotReady, Error, "the engine does not list its attachments", err.Error(), "look at the engine's log"})
	}
	if e.attachments == nil {
		e.attachments = []attachment{}
	}
	found = append(found, e.metrics(ctx)...)
	return found, fmt.Sprintf("dhcp-engine answers at %s; attachments: %d", e.cfg.Socket, len(e.attachments))
}

// healthy is patient for as long as a probe of the kubelet.
func healthy(ctx context.Context, c api.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.Healthy(ctx)
}

// socketFile looks at the socket without using it.
func (e *examination) socketFile() (found []Finding) {
	if e.cfg.Socket != api.DefaultSocket {
		found = append(found, Finding{SocketElsewhere, Note, "the engine's socket is not where plugins look for it: " + e.cfg.Socket,
			seen("DHCP_ENGINE_SOCKET or --socket; plugins use %s unless they are told otherwise", api.DefaultSocket),
			"set the same DHCP_ENGINE_SOCKET in the environment of Multus' daemon, or \"socket\" in the dhcp object of each network"})
	}
	folder := filepath.Dir(e.cfg.Socket)
	found = append(found, e.hostPath(folder, "the plugin on the node finds no socket there")...)
	// The kubelet makes a folder that it mounts with mode 0755, and who may only look into it
	// can neither connect nor put a socket of their own there.
	for _, place := range []struct {
		path string
		most fs.FileMode
	}{{folder, 0o755}, {e.cfg.Socket, 0o600}} {
		fi, err := os.Stat(place.path)
		if err == nil && fi.Mode().Perm()&^place.most != 0 {
			found = append(found, Finding{SocketOpen, Warning, "others than root may get at the engine's socket",
				seen("%s has mode %v, not %v", place.path, fi.Mode().Perm(), place.most), fmt.Sprintf("chmod %o %s", place.most, place.path)})
		}
	}
	return found
}

// noEngine tells why nobody answers.
func noEngine(socket string, err error) Finding {
	f := Finding{ID: SocketSilent, Level: Error, What: "whoever listens at the engine's socket does not answer", How: err.Error(),
		Do: "look at the engine's log, and restart it: it may hang"}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.ID, f.What = SocketMissing, "no engine runs on this node"
		f.Do = "look at the pod of the DaemonSet dhcp-engine on this node, and at its log; until it runs, marked networks wait (code 11)"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.ID, f.What = SocketStale, "no engine runs on this node, and one has left its socket behind"
		f.Do = "start the engine: it takes the place of what was left at " + socket
	case !errors.Is(err, api.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded):
		f.ID, f.What = SocketForeign, "it is no dhcp-engine that listens at the engine's socket"
		f.Do = "find who it is (ss -xlp), and end it, or give the engine another --socket"
	}
	return f
}

// readiness makes findings of the answers of /readyz and of STATUS.
func readiness(ready, status error) []Finding {
	switch {
	case ready != nil:
		return []Finding{{EngineNotReady, Error, "the engine runs, and cannot serve an ADD", ready.Error(),
			"mend what it says; its log has more"}}
	case status != nil:
		return []Finding{{EngineLimited, Warning, "leases are not known everywhere outside the node", status.Error(),
			"mend what it says; ADDs work meanwhile unless their network says publish: require"}}
	}
	return nil
}

// metrics asks the engine over TCP, which alone tells its version, and whether the
// kubelet's probes can reach it.
func (e *examination) metrics(ctx context.Context) []Finding {
	if e.cfg.MetricsAddress == "" {
		return nil
	}
	running, err := runningVersion(ctx, e.cfg.MetricsAddress)
	if err != nil {
		return []Finding{{MetricsUnreachable, Warning, "metrics and probes of the engine cannot be reached", err.Error(),
			"is another program at this port of the node (ss -tlp)? give the engine another --metrics-address"}}
	}
	if running != e.cfg.Version {
		return []Finding{{EngineVersion, Warning, "the running engine is not of this release",
			seen("dhcp_engine_build_info says %s, this program is %s", running, e.cfg.Version),
			"delete the engine's pod on this node (kubectl rollout status shows an update that hangs)"}}
	}
	return nil
}

// runningVersion is the label version of dhcp_engine_build_info.
func runningVersion(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/metrics", nil)
	if err != nil {
		return "", err
	}
	// Without the proxy that the environment may name.
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	for s := bufio.NewScanner(answer.Body); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), `dhcp_engine_build_info{version="`); ok {
			version, _, _ := strings.Cut(rest, `"`)
			return version, nil
		}
	}
	return "", fmt.Errorf("%s answers (%s), and not as dhcp-engine does", req.URL, answer.Status)
}
