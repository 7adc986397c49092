package dhcp4

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// FuzzReply takes bytes from the wire into a machine in each state, and into
// ParseOffer. Hardware address and transaction are set right, or nearly all would
// end at vet.
func FuzzReply(f *testing.F) {
	for _, kind := range []dhcpv4.MessageType{offerType, ackType, nakType} {
		f.Add(answer(kind, dhcpv4.TransactionID{}, "10.0.0.5", grant(
			optRouter, "10.0.0.1", optDNS, "10.0.0.3", optDomain, []byte("site.example"), optMTU, []byte{5, 0xdc},
			optStaticRoute, "192.168.7.0,10.0.0.2", optNTP, "10.0.0.4", optT1, 8, optT2, 16, optMessage, []byte("no"),
			optSearch, []byte("\x03eng\x04site\x00\xc0\x04"), optClassless, []byte{16, 10, 9, 10, 0, 0, 3},
			optClientID, testID, optOverload, []byte{3})...).ToBytes())
	}
	f.Add(answer(ackType, dhcpv4.TransactionID{}, "10.0.0.5", optServerID, "10.0.0.1").ToBytes())
	f.Add(answer(ackType, dhcpv4.TransactionID{}, "10.0.0.5", grant(optRapidCommit, []byte{}, optSubnetMask, "255.255.255.255",
		optRouter, "10.0.0.1", optMSClassless, []byte{0, 10, 0, 0, 1})...).ToBytes())
	f.Fuzz(func(t *testing.T, wire []byte) {
		for _, s := range situations() {
			msg, err := Decode(wire)
			if err != nil {
				return
			}
			m := New(fullConfig())
			s.enter(m)
			_, held := m.Lease()
			msg.ClientHWAddr, msg.TransactionID = testMAC, m.xid
			now := later(m)
			var used Lease
			for _, a := range m.Step(now, received(msg)) {
				checkAction(t, a, &used)
			}
			if _, holds := m.Lease(); holds && !held && !used.Addr.IsValid() {
				t.Errorf("in %s a lease came without Use", s.name)
			}
			if m.State() == Bound && s.state != Bound && !used.Addr.IsValid() {
				t.Errorf("from %s to BOUND without Use", s.name)
			}
		}
		msg, _ := Decode(wire)
		discover := Discover(fullConfig())
		msg.ClientHWAddr, msg.TransactionID = testMAC, discover.Msg.TransactionID
		offer, err := ParseOffer(fullConfig(), discover, received(msg))
		if err == nil {
			checkLease(t, offer.Lease)
		}
	})
}

// FuzzDecode: any bytes give a message or an error, and a message that goes out as
// it came in.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(overloaded(1, []byte{optRouter, 4, 10, 0, 0, 1, optEnd}, nil))
	f.Add(overloaded(2, nil, []byte{optDomain, 3, 'a', '.', 'b', optEnd}))
	f.Add(overloaded(3, []byte{optClassless, 3, 0, 10, 0}, []byte{optClassless, 2, 0, 1, optOverload, 1, 3, optEnd}))
	f.Add(overloaded(3, []byte{optRouter, 200}, nil))
	f.Fuzz(func(t *testing.T, wire []byte) {
		msg, err := Decode(wire)
		if (msg == nil) == (err == nil) {
			t.Fatalf("message %v, error %v", msg, err)
		}
		if err != nil {
			return
		}
		for code, value := range msg.Options {
			if len(value) > len(wire) {
				t.Errorf("option %d has %d bytes, the message %d", code, len(value), len(wire))
			}
		}
		delete(msg.Options, optOverload) // the options are all in one field now
		back, err := Decode(msg.ToBytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(msg.Options, back.Options, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("options (-first +second time):\n%s", diff)
		}
	})
}

// choices gives the bytes of a fuzzer as choices, and zeros when they are used up.
type choices struct{ bytes.Buffer }

func (c *choices) IntN(n int) int {
	b := c.Next(2)
	if len(b) < 2 {
		return 0
	}
	return (int(b[0])<<8 | int(b[1])) % n
}

// FuzzEvents takes a machine through any sequence of events.
func FuzzEvents(f *testing.F) {
	// With a check: start, offer, ack, probed.
	f.Add([]byte("\x00\x01" + "\x00\x03\x00\x00" + "\x00\x03\x00\x0b\x00\x00\x00\x03\x00\x09" +
		"\x00\x03\x00\x0b\x00\x02\x00\x03\x00\x09" + "\x00\x03\x00\x08\x00\x01"))
	f.Add(bytes.Repeat([]byte("start, offer, ack, elapsed"), 20))
	f.Fuzz(func(t *testing.T, script []byte) {
		var c choices
		c.Write(script)
		wander(t, &c, min(len(script)/4, 500))
	})
}

func FuzzClassless(f *testing.F) {
	f.Add([]byte{0, 10, 0, 0, 1})
	f.Add([]byte{12, 172, 31, 10, 0, 0, 1, 32, 169, 254, 169, 254, 0, 0, 0, 0})
	f.Add([]byte{33, 10, 9, 0, 1, 10, 77, 0, 1})
	f.Add([]byte{32, 10, 9, 0, 1, 10})
	f.Fuzz(func(t *testing.T, v []byte) {
		routes, err := parseClassless(v)
		if (err == nil) != (len(routes) > 0) {
			t.Errorf("%d routes, error %v", len(routes), err)
		}
		checkRoutes(t, routes)
		if len(routes) > len(v)/5 {
			t.Errorf("%d routes in %d bytes", len(routes), len(v))
		}
	})
}

func FuzzStatic(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0, 10, 0, 0, 1})
	f.Add([]byte{0, 0, 0, 0, 10, 0, 0, 1, 192, 168, 7, 9, 0, 0, 0, 0})
	f.Add([]byte{10, 0, 0})
	f.Fuzz(func(t *testing.T, v []byte) {
		routes, problems := parseStatic(v)
		checkRoutes(t, routes)
		for _, r := range routes {
			if r.Dst.Bits() == 0 || !r.Gateway.IsValid() {
				t.Errorf("route %v over %v", r.Dst, r.Gateway)
			}
		}
		if len(v) > 0 && len(routes)+len(problems) == 0 {
			t.Error("neither a route nor a problem")
		}
	})
}

func checkRoutes(t *testing.T, routes []Route) {
	t.Helper()
	for _, r := range routes {
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || !r.Dst.Addr().Is4() {
			t.Errorf("destination %v", r.Dst)
		}
		if r.Gateway.IsValid() && !isHost(r.Gateway) {
			t.Errorf("gateway %v", r.Gateway)
		}
	}
}

func FuzzSearch(f *testing.F) {
	f.Add([]byte("\x03eng\x05apple\x03com\x00\x09marketing\xc0\x04"))
	f.Add([]byte("\xc0\x00"))
	f.Add([]byte("\x01a\xc0\x04\xc0\x00"))
	f.Add([]byte("\x3faaa"))
	f.Fuzz(func(t *testing.T, v []byte) {
		names, err := parseSearch(v)
		if (err == nil) != (len(names) > 0) || len(names) > maxSearch+1 {
			t.Errorf("%d names, error %v", len(names), err)
		}
		for _, name := range names {
			if !isDomain(name) {
				t.Errorf("name %q", name)
			}
		}
	})
}
