package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// socketPath is where the plugin finds the server.
const socketPath = "/var/run/ovn-kubernetes/cni/ovn-cni-server.sock"

// annotationLimit is how long ADD waits for the pod's entry, and annotationPoll how
// often it looks.
const (
	annotationLimit = 2 * time.Minute
	annotationPoll  = 200 * time.Millisecond
)

// cniRequest is what the plugin sends: its environment and standard input.
type cniRequest struct {
	Env    map[string]string `json:"env"`
	Config json.RawMessage   `json:"config"`
}

// serveCNI answers the plugin until ctx ends.
func serveCNI(ctx context.Context, c *controller) error {
	if err := os.MkdirAll(filepath.Dir(socketPath), 0o700); err != nil {
		return err
	}
	if err := os.Remove(socketPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socketPath)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: http.HandlerFunc(c.serve), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	c.log.Info("ovnkubedouble serves CNI", "socket", socketPath)
	if err := srv.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

func (c *controller) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req cniRequest
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call, err := c.parse(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var answer []byte
	switch req.Env["CNI_COMMAND"] {
	case "ADD":
		answer, err = call.add(r.Context())
	case "DEL":
		err = call.del(r.Context())
	case "STATUS":
	default:
		err = fmt.Errorf("unsupported CNI command %s", req.Env["CNI_COMMAND"])
	}
	c.log.Info("CNI call", "command", req.Env["CNI_COMMAND"], "pod", call.namespace+"/"+call.pod, "ifname", call.ifName,
		"container", call.container, "error", err)
	if err != nil {
		http.Error(w, fmt.Sprintf("[%s/%s %s] %v", call.namespace, call.pod, call.container, err), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(answer)
}

// cniCall is one call of the plugin.
type cniCall struct {
	*controller
	conf                     netConf
	container, netns, ifName string
	namespace, pod, uid      string
}

func (c *controller) parse(r cniRequest) (*cniCall, error) {
	call := &cniCall{controller: c, container: r.Env["CNI_CONTAINERID"], netns: r.Env["CNI_NETNS"], ifName: r.Env["CNI_IFNAME"]}
	if err := json.Unmarshal(r.Config, &call.conf); err != nil {
		return call, err
	}
	for pair := range strings.SplitSeq(r.Env["CNI_ARGS"], ";") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return call, fmt.Errorf("invalid CNI_ARG %q", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			call.namespace = value
		case "K8S_POD_NAME":
			call.pod = value
		case "K8S_POD_UID":
			call.uid = value
		}
	}
	if r.Env["CNI_COMMAND"] != "STATUS" {
		_ = call.container[:15] // a sandbox id that is shorter makes the real one panic too, and the plugin reads EOF
	}
	if call.conf.Type != pluginName {
		return call, errUnmanaged
	}
	return call, nil
}

// get finds the pod and its network behind the interface.
func (c *cniCall) get() (*corev1.Pod, wanted, error) {
	obj, ok, err := c.podStore.GetByKey(c.namespace + "/" + c.pod)
	if err != nil || !ok {
		// The real one goes on with an empty pod.
		obj = &corev1.Pod{}
	}
	pod := obj.(*corev1.Pod)
	if c.conf.NADName == "" {
		return pod, wanted{key: defaultKey, ifName: c.ifName}, nil
	}
	networks, err := c.networksOf(pod)
	if err != nil {
		return nil, wanted{}, err
	}
	for _, w := range networks {
		if w.ifName == c.ifName && w.key != defaultKey {
			return pod, w, nil
		}
	}
	return nil, wanted{}, fmt.Errorf("failed to find NAD key for pod %s/%s with ifName %s", pod.Namespace, pod.Name, c.ifName)
}

// entry waits for the pod's entry in the annotation.
func (c *cniCall) entry(ctx context.Context) (*corev1.Pod, wanted, podNetwork, error) {
	ctx, cancel := context.WithTimeout(ctx, annotationLimit)
	defer cancel()
	tick := time.NewTicker(annotationPoll)
	defer tick.Stop()
	var last error
	for {
		pod, w, err := c.get()
		if err == nil && pod.Name == "" {
			err = fmt.Errorf("pod %s/%s not found", c.namespace, c.pod)
		}
		if err == nil && c.uid != "" && string(pod.UID) != c.uid {
			return nil, wanted{}, podNetwork{}, fmt.Errorf("the pod was deleted and created again: UID %s, not %s", pod.UID, c.uid)
		}
		if err == nil {
			var entries map[string]podNetwork
			if entries, err = readEntries(pod); err == nil {
				if e, ok := entries[w.key]; ok {
					return pod, w, e, nil
				}
				err = fmt.Errorf("no entry %s in annotation %s", w.key, podNetworks)
			}
		}
		last = err
		select {
		case <-ctx.Done():
			return nil, wanted{}, podNetwork{}, fmt.Errorf("failed to get pod annotation: timed out waiting for annotations: %w", last)
		case <-tick.C:
		}
	}
}
