package kube

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
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

// What stands in a pod is nobody's business who reads the log, at debug either.
func TestDebugLogHasNoObjects(t *testing.T) {
	const secret = "hunter2"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","annotations":{"password":"`+secret+`"}}}`)
	}))
	defer server.Close()
	var out bytes.Buffer
	RedirectClientLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer klog.ClearLogger()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := client.CoreV1().Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || pod.Annotations["password"] != secret {
		t.Fatalf("%+v, %v", pod, err)
	}
	klog.Warning("the library's own trouble")
	if text := out.String(); strings.Contains(text, secret) || strings.Contains(text, "Body") || !strings.Contains(text, "level=DEBUG msg=\"the library's own trouble\"") {
		t.Errorf("log:\n%s", text)
	}
}
