package guest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/trap"
)

// payload is where the machine finds the programs.
const payload = "/payload"

// Node and Server are the machine's own network namespace, where the physical and
// virtual functions are, and the one of the server at the other end of the wire, whose
// interface is rig.ServerIface with the address rig.ServerAddr.
var (
	Node   = &rig.Netns{Name: "node", Path: "/run/netns/node"}
	Server = &rig.Netns{Name: "server", Path: "/run/netns/server"}
)

// Main is the TestMain of a package whose tests run in the machine. Elsewhere they can
// only be listed.
func Main(m *testing.M) {
	trap.Launch()
	flag.Parse()
	if listing := flag.Lookup("test.list").Value.String() != ""; !listing {
		if !inMachine() {
			fmt.Println("these tests run in the machine of tests/vm")
			return
		}
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, "set up the machine:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// inMachine tells whether init of tests/vm/image is the first process here.
func inMachine() bool {
	b, err := os.ReadFile("/proc/1/cmdline")
	return err == nil && strings.Contains(string(b), "/init") && exists(payload+"/start")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// setUp loads the drivers, makes the virtual functions and the server's namespace.
func setUp() error {
	for name, value := range map[string]string{"DHCP_META_BIN": payload, "DHCP_META_PLUGINS": payload + "/plugins"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	if err := command("modprobe", "-a", "igb", "igbvf", "e1000e", "vfio-pci", "vfio_iommu_type1", "veth"); err != nil {
		return err
	}
	if err := findHardware(); err != nil {
		return err
	}
	if err := namespaces(); err != nil {
		return err
	}
	if err := virtualFunctions(); err != nil {
		return err
	}
	return reachAPI()
}

// namespaces gives the machine's namespace a name, and moves the far end of the wire
// into another one.
func namespaces() error {
	peer, err := PeerDevice.netdev()
	if err != nil {
		return err
	}
	for _, words := range []string{
		"ip netns attach " + Node.Name + " 1",
		"ip netns add " + Server.Name,
		"ip link set " + peer + " netns " + Server.Name + " name " + rig.ServerIface,
		"ip -n " + Server.Name + " link set lo up",
		"ip -n " + Server.Name + " addr add " + rig.ServerAddr.String() + " dev " + rig.ServerIface,
		"ip -n " + Server.Name + " link set " + rig.ServerIface + " up",
	} {
		f := strings.Fields(words)
		if err := command(f[0], f[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Run executes a command that must succeed, and returns what it printed.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
