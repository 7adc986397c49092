package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

func TestProbe(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.server.mtu = 1400
		e, _ := w.start()
		begin := time.Now()
		got, err := e.Probe(t.Context(), api.ProbeRequest{Netns: "c1", IfName: "net1"})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != api.DefaultProbe {
			t.Errorf("took %s", took)
		}
		for i := range got.Offers {
			got.Offers[i].Options = nil // TestOfferOf has them
		}
		want := api.ProbeReport{
			Netns: "c1", IfName: "net1", HardwareAddr: "02:00:00:00:00:01", Kind: "veth", ClientID: "01020000000001",
			Discovers: 2, Waited: 5 * time.Second,
			Offers: []api.Offer{{
				Server: "10.77.0.1", From: "10.77.0.1", Discover: 1, Address: "10.77.0.50/24",
				LeaseSeconds: 3600, T1Seconds: 1800, T2Seconds: 3150, Routers: []string{"10.77.0.1"},
				Routes: []api.Route{{Dst: "0.0.0.0/0", Gateway: "10.77.0.1"}},
				DNS:    api.DNS{Nameservers: []string{"10.77.0.3"}, Domain: "site.example"}, MTU: 1400,
			}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
		wantNotes(t, w, "DISCOVER to all", "DISCOVER to all") // and no REQUEST
		nothingLeft(t, w)
	})
}

// A lease that the engine has on the interface goes on beside a probe.
func TestProbeBesideALease(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		time.Sleep(30*time.Minute - time.Second) // T1 comes during the probe
		w.since()
		got, err := e.Probe(t.Context(), api.ProbeRequest{Netns: "c1", IfName: "net1", Timeout: 3 * time.Second})
		if err != nil || len(got.Offers) != 1 || got.Offers[0].Address != "10.77.0.50/24" {
			t.Errorf("report %+v, %v", got, err)
		}
		wantNotes(t, w, "DISCOVER to all", "REQUEST to 10.77.0.1", "put leased 10.77.0.50/24", "configure 10.77.0.50/24")
	})
}

func TestProbeHints(t *testing.T) {
	tests := []struct {
		name string
		set  func(*world, *space)
		want string
		sent int
	}{
		{"OK silence behind a veth", func(w *world, _ *space) { w.server.silent = true }, "no reply for 02:00:00:00:00:01 came back; look whether the bridge", 2},
		{"OK silence behind a macvlan", func(w *world, s *space) { w.server.silent, s.link.Kind = true, "macvlan" }, "port security", 2},
		{"OK silence behind an ipvlan", func(w *world, s *space) { w.server.silent, s.link.Kind = true, "ipvlan" }, "probe with broadcast", 2},
		{"OK silence behind anything", func(w *world, s *space) { w.server.silent, s.link.Kind = true, "dummy" }, "UDP ports 67 and 68", 2},
		{"OK no carrier", func(_ *world, s *space) { s.carrier = make(chan struct{}) }, "net1 has no carrier", 0},
		{"B53 offers without a mask", func(w *world, _ *space) { w.server.noMask = true }, "no offer can be used: offer of 10.77.0.50 has no subnet mask (option 1)", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				tt.set(w, w.space("c1", 1))
				e, _ := w.start()
				got, err := e.Probe(t.Context(), api.ProbeRequest{Netns: "c1", IfName: "net1"})
				if err != nil || !strings.Contains(got.Hint, tt.want) || got.Discovers != tt.sent {
					t.Errorf("want %d DISCOVER and a hint with %q, got %+v, %v", tt.sent, tt.want, got, err)
				}
				nothingLeft(t, w)
			})
		})
	}
}

// tallied is a kernel that counts.
type tallied struct {
	links
	frames, others int
	err            error
	closed         *bool
}

func (l tallied) Tally(context.Context, Target) (Tally, error) { return l, l.err }
func (l tallied) Seen() (int, int)                             { return l.frames, l.others }
func (l tallied) Close() error                                 { *l.closed = true; return nil }

func TestProbeHearsTheLink(t *testing.T) {
	for _, tt := range []struct {
		name           string
		frames, others int
		err            error
		want           string
	}{
		{"OK a deaf link", 0, 0, nil, "nothing else arrived either"},
		{"OK a server for others", 7, 2, nil, "2 DHCP replies to other clients arrived"},
		{"OK a link that hears", 7, 0, nil, "came back; look whether the bridge"},
		{"OK nobody counts", 0, 0, errors.New("no buffer space"), "came back; look whether the bridge"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				w.server.silent = true
				closed := false
				e := New(Config{
					Links: tallied{links{w}, tt.frames, tt.others, tt.err, &closed}, Now: time.Now, Metrics: NewMetrics(nil),
					Rand: func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) },
				})
				got, err := e.Probe(t.Context(), api.ProbeRequest{Netns: "c1", IfName: "net1"})
				if err != nil || !strings.Contains(got.Hint, tt.want) {
					t.Errorf("want a hint with %q, got %+v, %v", tt.want, got, err)
				}
				if counted := got.Heard != nil; counted != (tt.err == nil) || counted != closed {
					t.Errorf("heard %+v, closed: %v", got.Heard, closed)
				}
			})
		})
	}
}

func TestProbeRefused(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		for _, tt := range []struct {
			name string
			r    api.ProbeRequest
			code uint
			want string
		}{
			{"a namespace that Links refuses", api.ProbeRequest{Netns: "/proc/1/ns/net", IfName: "eth0"}, api.CodeEnv, "/proc/1/ns/net"},
			{"a client id that is none", api.ProbeRequest{Netns: "c1", IfName: "net1", ClientID: "pod"}, api.CodeConfig, "hexadecimal"},
			{"a client id of one byte", api.ProbeRequest{Netns: "c1", IfName: "net1", ClientID: "01"}, api.CodeConfig, "2 to 255"},
		} {
			if _, err := e.Probe(t.Context(), tt.r); err == nil || api.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: code %d, %v", tt.name, api.CodeOf(err), err)
			}
		}
		wantNotes(t, w)
	})
}

func TestProbeEndsWithItsCaller(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		e, _ := w.start()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := e.Probe(ctx, api.ProbeRequest{Netns: "c1", IfName: "net1", Timeout: time.Minute}); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		synctest.Wait()
		nothingLeft(t, w)
	})
}

func TestProbeClientID(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for text, want := range map[string][]byte{
		"": append([]byte{1}, mac...), "mac": append([]byte{1}, mac...), "none": nil,
		"00:77:65:62": {0, 'w', 'e', 'b'}, "00776562": {0, 'w', 'e', 'b'},
	} {
		if got, err := probeClientID(text, mac); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q gives %x, %v, want %x", text, got, err, want)
		}
	}
}

// probing is a probe whose DISCOVER has just been sent.
func probing(t *testing.T, w *world) (*probe, *dhcpv4.DHCPv4) {
	t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	w.change(func() { w.server.silent = true })
	p := &probe{
		cfg:    &Config{Now: time.Now, Metrics: NewMetrics(nil)},
		client: dhcp4.Config{HardwareAddr: mac, Rand: rand.New(rand.NewPCG(1, 2))},
		port:   &port{w: w, mac: mac},
		report: &api.ProbeReport{},
	}
	p.ask(t.Context())
	return p, p.asked[0].discover.Msg
}

// Offers of two servers over a relay, the same offer again, and what is none.
func TestProbeTellsRepliesApart(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		p, discover := probing(t, w)
		from := netip.MustParseAddr("10.77.0.2")
		offer := w.server.reply(discover, dhcpv4.MessageTypeOffer, netip.MustParseAddr("10.77.0.50"))
		offer.GatewayIPAddr = net.IPv4(10, 77, 0, 254)
		second := w.server.reply(discover, dhcpv4.MessageTypeOffer, netip.MustParseAddr("10.77.0.90"))
		second.UpdateOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 77, 0, 2)))
		nak := w.server.reply(discover, dhcpv4.MessageTypeNak, netip.Addr{})
		foreign := w.server.reply(discover, dhcpv4.MessageTypeOffer, netip.MustParseAddr("10.77.0.51"))
		foreign.TransactionID[0] ^= 0xff
		for _, m := range []*dhcpv4.DHCPv4{offer, offer, second, nak, nak, foreign} {
			p.take(dhcp4.Received{Msg: m, From: from})
		}
		type seen struct{ server, from, relay, address string }
		var got []seen
		for _, o := range p.report.Offers {
			got = append(got, seen{o.Server, o.From, o.Relay, o.Address})
		}
		want := []seen{{"10.77.0.1", "10.77.0.2", "10.77.0.254", "10.77.0.50/24"}, {"10.77.0.2", "10.77.0.2", "", "10.77.0.90/24"}}
		if !slices.Equal(got, want) {
			t.Errorf("offers %+v, want %+v", got, want)
		}
		if len(p.report.LeftAside) != 2 || !strings.Contains(p.report.LeftAside[0], "nak") || !strings.Contains(p.report.LeftAside[1], "transaction") {
			t.Errorf("left aside: %q", p.report.LeftAside)
		}
		if options := p.report.Offers[0].Options; !slices.Contains(options, api.OfferedOption{Code: 1, Value: "ffffff00"}) ||
			!slices.IsSortedFunc(options, func(a, b api.OfferedOption) int { return int(a.Code) - int(b.Code) }) {
			t.Errorf("options %v", options)
		}
	})
}

// A broken network's thousand offers end in a report of a bounded size.
func TestProbeIsBounded(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		p, discover := probing(t, w)
		for i := range 1000 {
			o := w.server.reply(discover, dhcpv4.MessageTypeOffer, netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i%250 + 1)}))
			o.UpdateOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 78, byte(i>>8), byte(i%250+1))))
			from := netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i % 256)})
			p.take(dhcp4.Received{Msg: o, From: from})
			p.take(dhcp4.Received{Msg: w.server.reply(discover, dhcpv4.MessageTypeNak, netip.Addr{}), From: from})
		}
		if len(p.report.Offers) != maxProbed || len(p.report.LeftAside) != maxProbed {
			t.Errorf("%d offers, %d others, want %d of each", len(p.report.Offers), len(p.report.LeftAside), maxProbed)
		}
	})
}
