package integration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// lent is what the scripted servers of these tests lend.
var lent = rig.Terms{Addr: netip.MustParsePrefix("10.77.0.70/24"), Lifetime: seconds(120)}

// scripted starts a scripted server on the server's end of the wire, whose replies
// answer makes.
func (l *lab) scripted(t testing.TB, answer func(s *rig.Scripted, f rig.Frame) [][]byte) *rig.Scripted {
	t.Helper()
	var s *rig.Scripted
	ready := make(chan struct{})
	s = rig.StartScripted(t, l.Server, rig.ServerIface, rig.ServerAddr.Addr(), func(f rig.Frame) [][]byte {
		<-ready
		if f.Type != dhcpv4.MessageTypeDiscover && f.Type != dhcpv4.MessageTypeRequest {
			return nil
		}
		return answer(s, f)
	})
	close(ready)
	return s
}

// always is a modifier that gives an option to each reply.
func always(code uint8, value ...byte) dhcpv4.Modifier {
	return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), value)
}

// Two messages instead of four, where it is asked for, and four where not.
func TestRapidCommit(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprint("asked for ", asked), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := rig.Pool(0, 0)
			cfg.Dnsmasq = []string{"--dhcp-rapid-commit"}
			server := rig.StartDnsmasq(t, l.Server, cfg)
			pod := newSandbox(t)
			call := pod.Call("net1", l.Macvlan(object{"rapidCommit": asked}))
			addr := leased(t, pod.mustAdd(t, l, call))
			mac := pod.HardwareAddr(t, "net1")
			server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
			want := "[DISCOVER OFFER REQUEST ACK]"
			if asked {
				want = "[DISCOVER ACK]"
			}
			if got := fmt.Sprint(l.messages(0, mac)); got != want {
				t.Errorf("messages %s, want %s", got, want)
			}
			pod.carries(t, "net1", addr)
			l.Node.Del(t, call)
			server.AwaitHeld(t, "empty", rig.Nothing)
		})
	}
}

// Some servers know classless routes only by Microsoft's number, 249.
func TestOption249Alone(t *testing.T) {
	t.Parallel()
	serveRoutes(t, []string{"--dhcp-option=3,10.77.0.1", "--dhcp-option=249,10.9.0.0/16,10.77.0.7"},
		nil, route("10.9.0.0/16", "10.77.0.7"))
}

// overload moves the options of a message into its fields file and sname, and says
// so in option 52 (RFC 2131, 4.1).
func overload(payload, file, sname []byte) []byte {
	b := bytes.Clone(payload)
	for at, options := range map[int][]byte{108: file, 44: sname} {
		copy(b[at:], append(bytes.Clone(options), 255))
	}
	end := bytes.LastIndexByte(b, 255)
	return append(append(b[:end:end], 52, 1, 3), 255)
}

// Options are read in the fields file and sname too, where a server says that they
// are there.
func TestOptionOverload(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.scripted(t, func(s *rig.Scripted, f rig.Frame) [][]byte {
		return [][]byte{overload(s.Reply(f, lent), []byte{3, 4, 10, 77, 0, 1, 15, 4, 's', 'i', 't', 'e'}, []byte{6, 4, 10, 77, 0, 53})}
	})
	pod := newSandbox(t)
	o := pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"})))
	pod.expectRoutes(t, o, []rig.Route{route("default", "10.77.0.1")})
	if dns := o.Result.DNS; len(dns.Nameservers) != 1 || dns.Nameservers[0] != "10.77.0.53" || dns.Domain != "site" {
		t.Errorf("DNS is %+v", dns)
	}
}

// An option of more than 255 bytes comes in parts that belong together (RFC 3396).
func TestLongOption(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var value []byte
	for i := range 60 {
		value = append(value, 16, 10, byte(100+i), 10, 77, 0, 7)
	}
	l.scripted(t, func(s *rig.Scripted, f rig.Frame) [][]byte {
		return [][]byte{s.Reply(f, lent, always(121, value...))}
	})
	pod := newSandbox(t)
	o := pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))
	if n := len(o.Result.Routes); n != 60 {
		t.Errorf("%d routes in the result, want 60", n)
	}
	if got := pod.routeGet(t, "10.159.0.1"); !strings.Contains(got, "via 10.77.0.7 dev net1") {
		t.Errorf("the way to the last route's network: %s", got)
	}
}

// A reply with the client identifier of somebody else is for somebody else
// (RFC 6842), whatever its hardware address; one without, or with ours, counts.
func TestForeignClientIdentifier(t *testing.T) {
	t.Parallel()
	for name, echo := range map[string]bool{"ours is echoed": true, "none is echoed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			foreign := rig.Terms{Addr: netip.MustParsePrefix("10.77.0.71/24"), Lifetime: lent.Lifetime}
			l.scripted(t, func(s *rig.Scripted, f rig.Frame) [][]byte {
				own := rig.Without(dhcpv4.OptionClientIdentifier)
				if echo {
					own = always(61, f.Msg.Options.Get(dhcpv4.OptionClientIdentifier)...)
				}
				return [][]byte{s.Reply(f, foreign, always(61, 1, 2, 3, 4, 5, 6, 7)), s.Reply(f, lent, own)}
			})
			pod := newSandbox(t)
			if addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))); addr != lent.Addr {
				t.Errorf("got %v, want %v: the other one was somebody else's", addr, lent.Addr)
			}
			l.Engine.Lines.Await(t, "word of the reply left aside", 0, rig.Patience, func(line string) bool {
				return contains("reply left aside")(line) && contains("client identifier")(line)
			})
		})
	}
}

// With a mask of 32 bits there are no neighbours: the router gets a route of its
// own first, the default route goes over it, and both work.
func TestSingleAddressWithRouter(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	terms := rig.Terms{Addr: netip.MustParsePrefix("203.0.113.7/32"), Lifetime: seconds(120)}
	l.scripted(t, func(s *rig.Scripted, f rig.Frame) [][]byte {
		return [][]byte{s.Reply(f, terms, always(3, 10, 77, 0, 1))}
	})
	l.Server.IP(t, "route", "add", terms.Addr.String(), "dev", rig.ServerIface)
	pod := newSandbox(t)
	o := pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"})))
	if leased(t, o) != terms.Addr {
		t.Errorf("leased %v, want %v", leased(t, o), terms.Addr)
	}
	got := []string{pod.routeGet(t, "10.77.0.1"), pod.routeGet(t, "198.51.100.1")}
	want := []string{"10.77.0.1 dev net1 src 203.0.113.7 uid 0 cache", "198.51.100.1 via 10.77.0.1 dev net1 src 203.0.113.7 uid 0 cache"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ways (-want +got):\n%s", diff)
	}
	pod.expectPing(t, terms.Addr.Addr(), rig.ServerAddr.Addr())
}

// A server answers a renewal with next to nothing: address, mask and lease live on.
func TestOptionsLeftOutAtRenewal(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	renewed := false
	l.scripted(t, func(s *rig.Scripted, f rig.Frame) [][]byte {
		if !f.Msg.ClientIPAddr.IsUnspecified() {
			renewed = true
			return [][]byte{s.Reply(f, lent, rig.Without(dhcpv4.OptionSubnetMask))}
		}
		return [][]byte{s.Reply(f, lent, always(3, 10, 77, 0, 1), always(6, 10, 77, 0, 53))}
	})
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{"defaultRoute": "always"}))
	o := pod.mustAdd(t, l, call)
	lost := pod.watchLosses(t)
	l.Engine.MustCommand(t, "renew", pod.ID)
	if !renewed {
		t.Fatal("no renewal: the case is not the one meant")
	}
	pod.carries(t, "net1", leased(t, o))
	if gone := lost(); len(gone) != 0 {
		t.Errorf("net1 lost %v meanwhile", gone)
	}
	if st := l.status(t, pod, "net1"); st.State != "BOUND" || st.Address != lent.Addr.String() {
		t.Errorf("the engine lists %+v", st)
	}
	// The next renewal and the RELEASE still find the server.
	l.Engine.MustCommand(t, "renew", pod.ID)
	l.Node.Del(t, call)
	l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeRelease, nil)
}

// A server without T1 and T2, or with senseless ones, gives a lease all the same,
// and half of its time is T1.
func TestSenselessTimes(t *testing.T) {
	t.Parallel()
	for name, t1t2 := range map[string][2]uint32{"none": {}, "T1 after T2": {90, 60}, "T2 after the end": {60, 600}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.scripted(t, func(s *rig.Scripted, f rig.Frame) [][]byte {
				if t1t2[0] == 0 {
					return [][]byte{s.Reply(f, lent)}
				}
				return [][]byte{s.Reply(f, lent, always(58, binary.BigEndian.AppendUint32(nil, t1t2[0])...),
					always(59, binary.BigEndian.AppendUint32(nil, t1t2[1])...))}
			})
			pod := newSandbox(t)
			pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil)))
			st := l.status(t, pod, "net1")
			if st.T1 == nil || st.T2 == nil || st.Expiry == nil {
				t.Fatalf("the engine lists %+v", st)
			}
			if got := st.Expiry.Sub(*st.T1).Round(seconds(1)); got != seconds(60) {
				t.Errorf("T1 is %v before the end, want 60 s", got)
			}
			if got := st.Expiry.Sub(*st.T2).Round(seconds(1)); got != seconds(15) {
				t.Errorf("T2 is %v before the end, want 15 s", got)
			}
		})
	}
}
