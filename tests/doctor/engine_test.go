package doctor

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

func contains(s string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

func engineMistakes() []mistake {
	return []mistake{
		{name: "engine not running", want: []doctor.ID{doctor.SocketMissing}, harm: func(t *testing.T, c *clinic) func() {
			c.engine.Stop(t)
			return func() { c.engine.Start(t) }
		}},
		{name: "engine killed", want: []doctor.ID{doctor.SocketStale}, harm: func(t *testing.T, c *clinic) func() {
			c.engine.Kill(t)
			return func() { c.engine.Start(t) }
		}},
		{name: "engine hangs", want: []doctor.ID{doctor.SocketSilent}, harm: func(t *testing.T, c *clinic) func() {
			c.engine.Signal(t, syscall.SIGSTOP)
			return func() { c.engine.Signal(t, syscall.SIGCONT) }
		}},
		{name: "another program at the socket", want: []doctor.ID{doctor.SocketForeign, doctor.MultusPlaces},
			visit: env("DHCP_ENGINE_SOCKET", "/run/other/engine.sock"), note: doctor.SocketElsewhere,
			harm: func(t *testing.T, c *clinic) func() {
				folder := c.node.Path("/run/other")
				if err := os.Mkdir(folder, 0o700); err != nil {
					t.Fatal(err)
				}
				l, err := net.Listen("unix", folder+"/engine.sock")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(folder+"/engine.sock", 0o600); err != nil {
					t.Fatal(err)
				}
				go func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						fmt.Fprint(conn, "SSH-2.0-OpenSSH_9.2\r\n")
						conn.Close()
					}
				}()
				return func() { l.Close() }
			}},
		{name: "folder of the socket open to all", want: []doctor.ID{doctor.SocketOpen}, harm: chmod(filepath.Dir(node.Socket), 0o777, 0o700)},
		{name: "socket open to all", want: []doctor.ID{doctor.SocketOpen}, harm: chmod(node.Socket, 0o666, 0o600)},
		{name: "metrics elsewhere", want: []doctor.ID{doctor.MetricsUnreachable}, visit: env("DHCP_ENGINE_METRICS_ADDRESS", "127.0.0.1:1")},
		{name: "another engine's metrics", want: []doctor.ID{doctor.EngineVersion}, visit: env("DHCP_ENGINE_METRICS_ADDRESS", "127.0.0.1:9768"),
			harm: func(t *testing.T, c *clinic) func() {
				var l net.Listener
				err := c.node.Net.Do(func() (err error) {
					l, err = net.Listen("tcp", "127.0.0.1:9768")
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						fmt.Fprintln(w, `dhcp_engine_build_info{version="v0.0.1"} 1`)
					}))
				}()
				return func() { l.Close() }
			}},
		{name: "north database away", want: []doctor.ID{doctor.EngineLimited, doctor.OVNUnreachable}, harm: func(t *testing.T, c *clinic) func() {
			c.north.Kill(t)
			return func() { c.north.StartAgain(t) }
		}},
		{name: "OVN switched off", want: []doctor.ID{doctor.OVNOff}, visit: env("DHCP_ENGINE_OVN_NB", "off")},
		{name: "no OVN where it is looked for", want: []doctor.ID{doctor.OVNUnreachable}, visit: env("DHCP_ENGINE_OVN_NB", "auto")},
		{name: "files for OVN missing", want: []doctor.ID{doctor.OVNFiles}, visit: ssl("/etc/nowhere.pem")},
		{name: "a dhcp daemon besides", note: doctor.DHCPDaemon, harm: dhcpDaemonAt(dhcpSocket)},
		{name: "a dhcp daemon in our place", want: []doctor.ID{doctor.DHCPSocketForeign}, visit: env("DHCP_ENGINE_DHCP_SOCKET", dhcpSocket), harm: dhcpDaemonAt(dhcpSocket)},
		{name: "the dhcp plugin served, and all is well", says: doctor.AreaDHCPSocket, visit: env("DHCP_ENGINE_DHCP_SOCKET", node.Socket)},
		{name: "the dhcp plugin served, with settings beside", says: doctor.AreaPlugins, visit: env("DHCP_ENGINE_DHCP_SOCKET", node.Socket),
			harm: made("settings", func(*clinic) any { return with(maps.Clone(asks), "dhcp", object{"timeout": "40s"}) }, nil)},
		{name: "the dhcp plugin asked, and nobody there", want: []doctor.ID{doctor.DHCPSocketMissing},
			do:   []string{"DHCP_ENGINE_DHCP_SOCKET=" + dhcpSocket, `"type": "dhcp-meta"`},
			harm: made("asks", func(*clinic) any { return asks }, nil)},
		{name: "the dhcp plugin asked, and the engine a pod", want: []doctor.ID{doctor.DHCPSocketMissing},
			visit: env("KUBERNETES_SERVICE_HOST", "10.96.0.1"), do: []string{"overlays/drop-in", `"type": "dhcp-meta"`},
			harm: made("asks", func(*clinic) any { return asks }, nil)},
		{name: "marked, and the dhcp plugin asked all the same", want: []doctor.ID{doctor.DHCPSocketMissing},
			harm: made("asks", func(*clinic) any { return asks }, marked)},
		{name: "the dhcp plugin asked, and its daemon out of sight", says: doctor.AreaNetworks,
			harm: func(t *testing.T, c *clinic) func() {
				remove, end := c.network(t, "asks", asks, nil), dhcpDaemonAt("/run/of-the-host"+dhcpSocket)(t, c)
				return func() { end(); remove() }
			}},
		{name: "the dhcp socket not served", want: []doctor.ID{doctor.DHCPSocketMissing, doctor.DHCPTimeout},
			visit: env("DHCP_ENGINE_DHCP_SOCKET", "/run/dhcp-meta/dhcp.sock", "DHCP_ENGINE_DHCP_TIMEOUT", "10m")},
	}
}

const dhcpSocket = "/run/cni/dhcp.sock"

// asks is a network whose plugin asks the IPAM plugin dhcp.
var asks = object{"cniVersion": "1.0.0", "name": "asks", "type": "macvlan", "master": rig.Uplink, "ipam": object{"type": "dhcp"}}

// dhcpDaemonAt starts the reference daemon.
func dhcpDaemonAt(socket string) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		c.node.Run(t, "mkdir", "-p", filepath.Dir(socket))
		cmd := program(rig.Plugins()+"/dhcp", "daemon", "-socketpath", socket)
		daemon := c.node.Start(t, "dhcp daemon", cmd)
		if err := rig.AwaitFile(t.Context(), c.node.Path(socket), rig.Patience); err != nil {
			t.Fatal(err)
		}
		return func() {
			daemon.Kill(t)
			c.node.Run(t, "rm", "-r", filepath.Dir(socket))
		}
	}
}

func ssl(file string) visit {
	return env("DHCP_ENGINE_OVN_NB", "ssl:127.0.0.1:6641", "DHCP_ENGINE_OVN_NB_CA", file, "DHCP_ENGINE_OVN_NB_CERT", file, "DHCP_ENGINE_OVN_NB_KEY", file)
}

// chmod gives a file another mode, and its own back.
func chmod(path string, mode, own os.FileMode) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		set := func(mode os.FileMode) {
			if err := os.Chmod(c.node.Path(path), mode); err != nil {
				t.Error(err)
			}
		}
		set(mode)
		return func() { set(own) }
	}
}
