package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// APICard is the MAC of the card by which the machine reaches the API server of its
// cluster, where it is in one.
const APICard = "52:54:00:00:00:40"

// The files by which a machine that is in a cluster knows it.
const (
	// EngineConfig is the kubeconfig of the engine's account, AdminConfig that of the
	// cluster's admin.
	EngineConfig = payload + "/kubeconfig"
	AdminConfig  = payload + "/admin.kubeconfig"
	factsFile    = payload + "/facts.json"
)

// Facts are what the machine must know of its cluster.
type Facts struct {
	// Node is the machine's own name, Namespace one for its pods.
	Node, Namespace string
}

// Cluster reads the facts.
func Cluster(t testing.TB) (f Facts) {
	t.Helper()
	b, err := os.ReadFile(factsFile)
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatalf("what is the cluster of this machine: %v", err)
	}
	return f
}

// reachAPI sets up the card to the API server, where the machine is in a cluster:
// addresses are those of qemu's own network.
func reachAPI() error {
	if !exists(factsFile) {
		return nil
	}
	if err := command("modprobe", "virtio_net"); err != nil {
		return err
	}
	name := ""
	err := await(func() bool {
		files, _ := filepath.Glob("/sys/class/net/*/address") // the pattern is right
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == APICard {
				name = filepath.Base(filepath.Dir(f))
			}
		}
		return name != ""
	})
	if err != nil {
		return fmt.Errorf("no card to the API server: %w", err)
	}
	for _, words := range []string{
		"link set " + name + " up", "addr add 10.0.2.15/24 dev " + name, "route add default via 10.0.2.2",
	} {
		if err := command("ip", strings.Fields(words)...); err != nil {
			return err
		}
	}
	return nil
}
