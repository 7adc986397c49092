package integration

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Nothing of ours listens where a DHCP server would, nor where a client would: not on
// the node and not in the pod, not in an exchange and not between two.
func TestK09NothingListensOnDHCPPorts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(nil))
	quiet := func(when string) {
		t.Helper()
		for where, n := range map[string]*rig.Netns{"node": l.Node, "pod": pod.Netns} {
			if found := boundUDP(t, n); len(found) > 0 {
				t.Errorf("%s, on the %s: UDP sockets at %v", when, where, found)
			}
		}
	}

	add := l.background("ADD", call)
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	quiet("while it asks for an address")
	rig.StartDnsmasq(t, l.Server, rig.Pool(seconds(3), seconds(60)))
	if o := add.wait(t); o.Err != nil {
		t.Fatal(o.Err)
	}
	quiet("with a lease")
	mac := pod.HardwareAddr(t, "net1")
	_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
	l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, mac)
	quiet("in a renewal")

	// One that listened would be seen.
	err := pod.Do(func() error {
		c, err := net.ListenPacket("udp4", ":67")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := boundUDP(t, pod.Netns); len(found) != 1 {
		t.Errorf("a server in the pod is seen as %v", found)
	}
	l.Node.Del(t, call)
}

// boundUDP are the sockets of a namespace at the ports of DHCP, as the kernel lists
// them.
func boundUDP(t *testing.T, n *rig.Netns) (found []string) {
	t.Helper()
	err := n.Do(func() error {
		for _, table := range []string{"udp", "udp6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + table)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				for _, port := range []int{67, 68} {
					if len(f) > 1 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
						found = append(found, table+" "+f[1])
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
