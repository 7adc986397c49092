package kubelet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
)

// Registry is the host name that nodes know the registry of StartRegistry by.
const Registry = "registry.example.com"

// StartRegistry starts a registry for images, without TLS, beside a cluster's API server.
func StartRegistry(t testing.TB, c *kube.Cluster) {
	t.Helper()
	folder := t.TempDir()
	config := filepath.Join(folder, "config.yml")
	text := fmt.Sprintf("{version: 0.1, storage: {filesystem: {rootdirectory: %q}}, http: {addr: %q}}",
		filepath.Join(folder, "images"), kube.APIHost+":80")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.Net.Start(t, "docker-registry", exec.Command("docker-registry", "serve", config))
	p.Lines.Await(t, "readiness of docker-registry", 0, startPatience, func(line string) bool {
		return strings.Contains(line, "listening on")
	})
}

// registries is where containerd looks for what to know of a registry.
const registries = "/etc/containerd/certs.d"

// findRegistry tells the node of the registry.
func (n *Node) findRegistry(t testing.TB) {
	t.Helper()
	n.Write(t, "/etc/hosts", []byte("127.0.0.1 localhost\n"+kube.APIHost+" "+Registry+"\n"))
	n.Write(t, registries+"/"+Registry+"/hosts.toml", []byte("[host.\"http://"+Registry+"\"]\n"))
}

// Push gives the images of an OCI archive to the registry, under a name that begins with
// Registry.
func (n *Node) Push(t testing.TB, archive, name string) {
	t.Helper()
	n.Run(t, "skopeo", "copy", "--all", "--dest-tls-verify=false", "oci-archive:"+archive, "docker://"+name)
}
