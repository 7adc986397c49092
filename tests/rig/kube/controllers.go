package kube

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// StartControllers starts the controller manager and the scheduler, for nodes with a
// kubelet, and waits until the first has made what every pod needs.
func (c *Cluster) StartControllers(t testing.TB) {
	t.Helper()
	c.startController(t, "kube-controller-manager",
		"--use-service-account-credentials=true", "--root-ca-file="+c.pki.file("ca.crt"),
		"--service-account-private-key-file="+c.pki.file("accounts.key"),
		"--flex-volume-plugin-dir="+c.file("volumeplugins"))
	c.startController(t, "kube-scheduler")

	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("the controller manager has made no service account after %v: %v", startPatience, err)
		}
	}
}

func (c *Cluster) startController(t testing.TB, name string, flags ...string) *rig.Process {
	t.Helper()
	config := c.file(name + ".kubeconfig")
	if err := os.WriteFile(config, c.UserKubeconfig(t, "system:"+name), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.Net.Start(t, name, exec.Command(filepath.Join(c.bin, name), append(flags,
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir="+c.file("certs"))...))
}
