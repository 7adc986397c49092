package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// The main job from ADD to DEL: the pod gets an address from a real server, uses
// it, keeps it over T1 and gives it back.
func TestLifeOfALease(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		server := start(t, l.Server, rig.Pool(seconds(3), seconds(60)))
		pod := newSandbox(t)
		call := pod.Call("net1", l.Macvlan(nil))

		added := pod.mustAdd(t, l, call)
		addr := leased(t, added)
		if !rig.Pool(0, 0).Subnet.Masked().Contains(addr.Addr()) || addr.Bits() != 24 {
			t.Errorf("leased %v, want an address of %v", addr, rig.ServerAddr)
		}
		if gw := added.Result.IPs[0].Gateway; !gw.Equal(rig.ServerAddr.Addr().AsSlice()) {
			t.Errorf("gateway %v, want %v", gw, rig.ServerAddr.Addr())
		}
		mac := pod.HardwareAddr(t, "net1")
		server.AwaitHeld(t, "the pod's lease", rig.Holds(mac, addr.Addr()))
		have := pod.Addresses(t, "net1")
		if len(have) != 1 || have[0].Addr != addr || have[0].Valid > 120 {
			t.Errorf("net1 carries %v, want %v for no longer than its lease of 120 s", have, addr)
		}
		pod.expectPing(t, addr.Addr(), rig.ServerAddr.Addr())

		_, mark := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeAck, mac)
		renewal, mark := l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeRequest, mac)
		if got := renewal.Src.Addr(); got != addr.Addr() {
			t.Errorf("the renewal came from %v, want %v", got, addr.Addr())
		}
		l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac)

		l.Node.Del(t, call)
		server.AwaitHeld(t, "empty", rig.Nothing)
		if out, err := pod.TryIP("link", "show", "dev", "net1"); err == nil {
			t.Errorf("net1 is still there after DEL: %s", out)
		}
		l.expectNothingLeft(t)
	})
}

// A server may answer by unicast to an address that the client does not have yet,
// or by broadcast.
func TestB01UnicastAndBroadcastOffers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		options []string
		dst     string
	}{
		{"OK unicast", nil, "10.77.0."},
		{"OK broadcast", []string{"--dhcp-broadcast"}, "255.255.255.255"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := rig.Pool(0, 0)
			cfg.Dnsmasq = tt.options
			server := rig.StartDnsmasq(t, l.Server, cfg)
			pod := newSandbox(t)
			addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))

			mac := pod.HardwareAddr(t, "net1")
			offer, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeOffer, mac)
			if !strings.HasPrefix(offer.Dst.Addr().String(), tt.dst) {
				t.Errorf("the server offered to %v, want %s: the case is not the one meant", offer.Dst, tt.dst)
			}
			server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
		})
	}
}

// The dhcp.broadcast setting asks the server to answer by broadcast.
func TestBroadcastSetting(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(object{"broadcast": true})))
	offer, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeOffer, nil)
	if got := offer.Dst.Addr().String(); got != "255.255.255.255" {
		t.Errorf("the server offered to %s, want a broadcast", got)
	}
}

// On a veth pair the sender's checksum offload never happens, so the OFFER arrives
// with half a checksum.
func TestB02PartialChecksum(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	pod := newSandbox(t)
	addr := leased(t, pod.mustAdd(t, l, pod.Call("net1", l.Macvlan(nil))))
	mac := pod.HardwareAddr(t, "net1")
	offer, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeOffer, mac)
	if !offer.PartialChecksum {
		t.Error("the OFFER had a right checksum: the case is not the one meant")
	}
	server.AwaitHeld(t, "the lease", rig.Holds(mac, addr.Addr()))
}

// vethPod gives a sandbox an interface whose other end is in the server's
// namespace, and a chained configuration for it.
func (l *lab) vethPod(t *testing.T) (*sandbox, rig.Call) {
	t.Helper()
	pod := newSandbox(t)
	l.Server.IP(t, "link", "add", "v1", "type", "veth", "peer", "name", "net1", "netns", pod.Name)
	l.Server.IP(t, "addr", "add", rig.ServerAddr.String(), "dev", "v1")
	return pod, pod.Call("net1", object{
		"cniVersion": "1.1.0", "name": "site", "type": "dhcp-meta",
		"dhcp": l.Settings(nil),
		"prevResult": object{"cniVersion": "1.1.0", "interfaces": []object{
			{"name": "net1", "mac": pod.HardwareAddr(t, "net1").String(), "sandbox": pod.Path}}},
	})
}

// serveVeth serves the wire to a vethPod instead of the one to the node.
func (l *lab) serveVeth(t *testing.T) rig.Server {
	t.Helper()
	cfg := rig.Pool(0, 0)
	cfg.Interface = "v1"
	l.Server.IP(t, "addr", "del", rig.ServerAddr.String(), "dev", rig.ServerIface)
	return rig.StartDnsmasq(t, l.Server, cfg)
}

// The link is brought up, and nothing is sent into a link without carrier: a
// DISCOVER lost there would cost seconds.
func TestB05LinkDownAtAdd(t *testing.T) {
	t.Parallel()
	t.Run("OK interface down", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		pod, call := l.vethPod(t)
		l.Server.IP(t, "link", "set", "v1", "up")
		capture := rig.StartCapture(t, l.Server, "v1")
		l.serveVeth(t)
		pod.mustAdd(t, l, call)
		expectFirstDiscover(t, capture)
	})
	t.Run("OK carrier comes later", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		pod, call := l.vethPod(t)
		capture := rig.StartCapture(t, l.Server, "v1")
		l.serveVeth(t)
		up := pod.awaitUp(t, "net1")
		done := l.background("ADD", call)
		<-up // the engine has set net1 up and waits for the carrier
		l.Server.IP(t, "link", "set", "v1", "up")
		done.succeeds(t)
		expectFirstDiscover(t, capture)
	})
}

// expectFirstDiscover checks that no DISCOVER was lost before the first that
// arrived: the field 'secs' counts from the first that was sent.
func expectFirstDiscover(t testing.TB, capture *rig.Capture) {
	t.Helper()
	first, _ := capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	if first.Msg.NumSeconds != 0 {
		t.Errorf("the first DISCOVER that arrived was sent after %d s of trying", first.Msg.NumSeconds)
	}
}

// Two interfaces of one pod on one network are two clients with two leases.
func TestB07TwoInterfacesOneNetwork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(seconds(3), seconds(60)))
	pod := newSandbox(t)
	conf := l.Macvlan(nil)
	net1, net2 := pod.Call("net1", conf), pod.Call("net2", conf)
	one, two := leased(t, pod.mustAdd(t, l, net1)), leased(t, pod.mustAdd(t, l, net2))
	if one == two {
		t.Fatalf("both interfaces got %v", one)
	}
	server.AwaitHeld(t, "two leases", func(held []rig.Held) bool { return len(held) == 2 })
	mac2 := pod.HardwareAddr(t, "net2")

	l.Node.Del(t, net1)
	server.AwaitHeld(t, "net2's lease alone", rig.Holds(mac2, two.Addr()))
	mark := l.Capture.Len()
	l.Capture.AwaitType(t, mark, rig.Patience, dhcpv4.MessageTypeAck, mac2)
	if have := pod.Addresses(t, "net2"); len(have) != 1 || have[0].Addr != two {
		t.Errorf("net2 carries %v, want %v", have, two)
	}
	l.Node.Del(t, net2)
	server.AwaitHeld(t, "empty", rig.Nothing)
}

// Without a server ADD fails before the runtime kills it, says what it tried, and
// leaves nothing; with one it works again.
func TestB15NoServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	recorder := rig.NewRecorder(t, []string{"macvlan"})
	pod := newSandbox(t)
	call := pod.Call("net1", l.Macvlan(object{"timeout": "6s"}))
	call.Path = recorder.Folder
	o := l.Node.Refuse(t, "ADD", call, 11, "net1", "DISCOVER")

	discover, _ := l.Capture.AwaitType(t, 0, rig.Patience, dhcpv4.MessageTypeDiscover, nil)
	n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDiscover, nil))
	for _, word := range []string{discover.Msg.ClientHWAddr.String(), fmt.Sprint(n)} {
		if !strings.Contains(o.Err.Msg+o.Err.Details, word) {
			t.Errorf("the error does not say %s: %v", word, o.Err)
		}
	}
	l.expectNothingLeft(t)
	if have := pod.Addresses(t, "net1"); have != nil {
		t.Errorf("net1 carries %v after a failed ADD", have)
	}
	if diff := cmp.Diff([]string{"ADD", "DEL"}, verbs(recorder.Calls(t))); diff != "" {
		t.Errorf("calls of the delegate (-want +got):\n%s", diff)
	}

	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	addr := leased(t, pod.mustAdd(t, l, call))
	server.AwaitHeld(t, "the lease", rig.Holds(pod.HardwareAddr(t, "net1"), addr.Addr()))
}

func verbs(calls []rig.Recorded) []string {
	var list []string
	for _, c := range calls {
		list = append(list, c.Verb)
	}
	return list
}

// An address that somebody uses without the server's knowledge is declined; the
// server marks it, and the pod gets another one.
func TestAddressInUseIsDeclined(t *testing.T) {
	onBothServers(t, func(t *testing.T, l *lab, start rig.StartFunc) {
		cfg := rig.Pool(0, 0)
		cfg.Last = cfg.First.Next()
		start(t, l.Server, cfg)
		// A host with a fixed address in the middle of the pool.
		squatter := newSandbox(t)
		l.Node.IP(t, "link", "add", "link", rig.Uplink, "name", "squat", "netns", squatter.Name, "type", "macvlan", "mode", "bridge")
		squatter.IP(t, "addr", "add", cfg.First.String()+"/24", "dev", "squat")
		squatter.IP(t, "link", "set", "squat", "up")

		// Two pods want two addresses; one of them is not free.
		pods := []*sandbox{newSandbox(t), newSandbox(t)}
		call := func(s *sandbox) rig.Call { return s.Call("net1", l.Macvlan(object{"timeout": "30s"})) }
		addr := leased(t, pods[0].mustAdd(t, l, call(pods[0]))).Addr()
		if addr != cfg.Last {
			t.Errorf("got %v, want %v: %v is in use", addr, cfg.Last, cfg.First)
		}
		if o, err := l.Node.CNI("ADD", pods[1].Call("net1", l.Macvlan(object{"timeout": "3s"}))); err != nil || o.Err == nil {
			t.Errorf("the second pod got an address too: %s, %v", o.Stdout, err)
		}
		for _, f := range l.Capture.Since(0) {
			if f.Type == dhcpv4.MessageTypeDecline && !f.Msg.RequestedIPAddress().Equal(cfg.First.AsSlice()) {
				t.Errorf("declined %v, want %v", f.Msg.RequestedIPAddress(), cfg.First)
			}
		}
		if n := l.Capture.Count(0, rig.Type(dhcpv4.MessageTypeDecline, nil)); n == 0 {
			t.Error("nothing was declined")
		}
	})
}
