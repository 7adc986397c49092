package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConnect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	err := os.WriteFile(path, []byte(`
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Connect(path)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != "https://10.0.0.1:6443" || cfg.BearerToken != "secret" || !strings.HasPrefix(cfg.UserAgent, "dhcp-engine/") {
		t.Errorf("host %s, agent %s", cfg.Host, cfg.UserAgent)
	}
	if cfg.QPS < 10 || cfg.Burst < 60 {
		t.Errorf("%v requests a second, %d at once: a node's pods would wait for each other", cfg.QPS, cfg.Burst)
	}
}

func TestConnectProblems(t *testing.T) {
	if _, err := Connect(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "read kubeconfig ") {
		t.Errorf("no file: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Connect(""); err == nil || !strings.Contains(err.Error(), "as a pod of the cluster") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
