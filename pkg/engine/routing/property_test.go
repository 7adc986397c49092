package routing

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// chooser makes random choices; a fuzzer gives them as bytes, the property test
// as random numbers.
type chooser interface{ IntN(n int) int }

// choices gives the bytes of a fuzzer as choices, and zeros when they are used up.
type choices struct{ bytes.Buffer }

func (c *choices) IntN(n int) int {
	b, err := c.ReadByte()
	if err != nil {
		return 0
	}
	return int(b) % n
}

// anyAddr is an address near those that matter, so that prefixes meet.
func anyAddr(c chooser) netip.Addr {
	near := []string{
		"10.77.0.0", "10.77.0.1", "10.77.0.50", "10.77.0.255", "10.78.0.1", "10.244.3.0", "10.96.0.10", "0.0.0.0", "64.0.0.0", "128.0.0.0",
		"127.0.0.1", "169.254.169.254", "169.253.0.0", "192.168.7.9", "224.0.0.1", "255.255.255.255", "203.0.113.5",
	}
	a := netip.MustParseAddr(near[c.IntN(len(near))]).As4()
	if c.IntN(4) == 0 {
		a[c.IntN(4)] = byte(c.IntN(256))
	}
	return netip.AddrFrom4(a)
}

func anyPrefix(c chooser, shortest int) netip.Prefix {
	bits := []int{shortest, 8, 12, 16, 24, 31, 32, c.IntN(33)}[c.IntN(8)]
	return netip.PrefixFrom(anyAddr(c), max(bits, shortest)).Masked()
}

func anyLease(c chooser) dhcp4.Lease {
	l := dhcp4.Lease{Addr: netip.PrefixFrom(anyAddr(c), []int{24, 32, 16, 31, 8, c.IntN(33)}[c.IntN(6)])}
	for range c.IntN(3) {
		l.Routers = append(l.Routers, anyAddr(c))
	}
	for range c.IntN(9) {
		r := dhcp4.Route{Dst: anyPrefix(c, 0)}
		switch c.IntN(4) {
		case 0: // on the link
		case 1:
			if len(l.Routers) > 0 {
				r.Gateway = l.Routers[0]
			}
		default:
			r.Gateway = anyAddr(c)
		}
		l.Routes = append(l.Routes, r)
	}
	return l
}

func anyPolicy(c chooser) Policy {
	list := func(shortest int) (out []netip.Prefix) {
		for range c.IntN(3) {
			out = append(out, anyPrefix(c, shortest))
		}
		return out
	}
	return Policy{DefaultRoute: c.IntN(3) == 0, Allow: list(0), Deny: list(4), Protected: list(4), Existing: list(0)}
}

// checkAdmit holds what is promised against any policy and lease.
func checkAdmit(t *testing.T, c chooser) {
	t.Helper()
	p, l := anyPolicy(c), anyLease(c)
	given := slices.Clone(l.Routes)
	admitted, refused := Admit(p, l)
	defer func() {
		if t.Failed() {
			t.Logf("policy %+v\nlease %s routers %v routes %v\nadmitted %v\nrefused %v", p, l.Addr, l.Routers, show(given), show(admitted), refused)
		}
	}()
	if diff := cmp.Diff(show(given), show(l.Routes)); diff != "" {
		t.Fatalf("the lease was changed (-want +got):\n%s", diff)
	}
	checkDivision(t, l, admitted, refused)
	for _, r := range admitted {
		checkDestination(t, p, l, r)
		checkRouter(t, l, admitted, r)
	}
	// What was admitted once is admitted again. With an allow-list, an added link
	// route is one of the server's the second time, which must be allowed.
	if p.Allow == nil {
		l.Routes = admitted
		again, more := Admit(p, l)
		if diff := cmp.Diff(show(admitted), show(again), cmpopts.EquateEmpty()); diff != "" || more != nil {
			t.Fatalf("admitted again (-want +got):\n%s\nrefused %v", diff, more)
		}
	}
}

// checkDivision: each route of the lease is in one of the results, and nothing
// else is but link routes to routers.
func checkDivision(t *testing.T, l dhcp4.Lease, admitted []dhcp4.Route, refused []Refusal) {
	t.Helper()
	rest := slices.Clone(l.Routes)
	take := func(r dhcp4.Route) bool {
		i := slices.Index(rest, r)
		if i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		}
		return i >= 0
	}
	for _, r := range refused {
		if !take(r.Route) {
			t.Fatalf("%v is refused and not in the lease", r)
		}
		if !slices.Contains(Reasons(), r.Reason) || r.Text == "" {
			t.Fatalf("refusal %+v", r)
		}
	}
	for _, r := range admitted {
		if !take(r) && (r.Gateway.IsValid() || !r.Dst.IsSingleIP() || !slices.Contains(l.Routers, r.Dst.Addr())) {
			t.Fatalf("%v is admitted and not in the lease", r)
		}
	}
	if len(rest) > 0 {
		t.Fatalf("%v is neither admitted nor refused", rest)
	}
}

// checkDestination asks for addresses, not for prefixes as the code does.
func checkDestination(t *testing.T, p Policy, l dhcp4.Lease, r dhcp4.Route) {
	t.Helper()
	if r.Dst.Bits() <= 1 {
		if !p.DefaultRoute {
			t.Fatalf("%s is admitted", r.Dst)
		}
		return
	}
	if !p.DefaultRoute && r.Dst.Bits() < 8 {
		t.Fatalf("%s takes the traffic of a default route", r.Dst)
	}
	if r.Dst == netip.PrefixFrom(l.Addr.Addr(), 32) {
		t.Fatalf("%s is the leased address", r.Dst)
	}
	for _, of := range slices.Concat(p.Protected, p.Deny) {
		for _, a := range []netip.Addr{of.Addr(), last(of), r.Dst.Addr(), last(r.Dst)} {
			if r.Dst.Contains(a) && of.Contains(a) {
				t.Fatalf("%s reaches %s of %s", r.Dst, a, of)
			}
		}
	}
	for _, e := range p.Existing {
		if e.Bits() > 1 && r.Dst.Bits() >= e.Bits() && e.Contains(r.Dst.Addr()) {
			t.Fatalf("%s takes precedence over %s", r.Dst, e)
		}
	}
	for _, s := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"} {
		if r.Dst.Contains(netip.MustParseAddr(s)) {
			t.Fatalf("%s reaches %s", r.Dst, s)
		}
	}
	if metadata := netip.MustParseAddr("169.254.169.254"); r.Dst.Contains(metadata) &&
		!slices.ContainsFunc(p.Allow, func(a netip.Prefix) bool { return a.Bits() >= 16 && a.Contains(metadata) }) {
		t.Fatalf("%s reaches the metadata service", r.Dst)
	}
}

func last(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		a[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(a)
}

func checkRouter(t *testing.T, l dhcp4.Lease, admitted []dhcp4.Route, r dhcp4.Route) {
	t.Helper()
	if !r.Gateway.IsValid() || l.Addr.Contains(r.Gateway) {
		return
	}
	at := slices.Index(admitted, r)
	if !slices.ContainsFunc(admitted[:at], func(link dhcp4.Route) bool { return !link.Gateway.IsValid() && link.Dst.Contains(r.Gateway) }) {
		t.Fatalf("nothing before %v reaches its router", r)
	}
}

func TestAdmitPromises(t *testing.T) {
	c := rand.New(rand.NewPCG(3, 6))
	for range 20_000 {
		checkAdmit(t, c)
	}
}

func FuzzAdmit(f *testing.F) {
	f.Add([]byte{})
	c := rand.New(rand.NewPCG(1, 1))
	for range 8 {
		seed := make([]byte, 128)
		for i := range seed {
			seed[i] = byte(c.IntN(256))
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) { checkAdmit(t, &choices{*bytes.NewBuffer(raw)}) })
}
