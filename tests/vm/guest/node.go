package guest

import (
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// StartServer runs dnsmasq at the other end of the wire until the test ends.
func StartServer(t testing.TB) *rig.Dnsmasq {
	t.Helper()
	return rig.RunDnsmasq(t, Server, rig.Pool(0, 0))
}

// Capture shows the DHCP that passes the other end of the wire until the test ends.
func Capture(t testing.TB) *rig.Capture {
	t.Helper()
	return rig.StartCapture(t, Server, rig.ServerIface)
}

// Quiet says how long a test listens for what must not come.
const Quiet = 2 * time.Second
