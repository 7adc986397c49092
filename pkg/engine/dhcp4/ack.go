package dhcp4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// minMTU is the least value of option 26; RFC 2132, 5.1.
const minMTU = 68

// infiniteSeconds is the lease time of a lease that never ends; RFC 2131, 3.3.
const infiniteSeconds = math.MaxUint32

// parseLease turns an OFFER or ACK into a lease; Start is left to the caller. The
// error says why it can be no lease, the remarks which options were left out and
// why. known is the address whose mask holds when there is none in the reply; the
// zero Prefix: there must be one.
//
// Options are read from their bytes: the getters of the codec return nothing for
// an option that is malformed just as for one that is missing, and the two are
// not the same here. Decode has joined options that came in several parts or fields
// (RFC 3396).
func parseLease(r reply, known netip.Prefix) (Lease, []string, error) {
	o := options{all: r.Msg.Options, remarks: r.remarks}
	l := Lease{Server: r.server}
	var err error
	if l.Addr, err = o.address(addr4(r.Msg.YourIPAddr), known); err != nil {
		return Lease{}, nil, fmt.Errorf("%s of %s %w", r.name(), addr4(r.Msg.YourIPAddr), err)
	}
	if err := o.times(&l); err != nil {
		return Lease{}, nil, fmt.Errorf("%s of %s %w", r.name(), l.Addr.Addr(), err)
	}
	l.Routers = o.addrs(optRouter, "routers")
	l.Routes = o.routes(l.Addr, l.Routers)
	l.DNS = o.addrs(optDNS, "name servers")
	l.NTP = o.addrs(optNTP, "time servers")
	l.Domain = o.domain()
	l.Search = o.search()
	l.MTU = o.mtu()
	return l, o.remarks, nil
}

// fillFrom takes what the ACK to a unicast renewal does not speak of from the lease
// that it extends. A server behind a relay may not know at that moment what it said
// over the relay: dnsmasq takes the router from giaddr, which is zero then (U02).
// Taken at its word it would have the client lose its routes at each T1, and with
// them the way to that server. What comes over the relay again, at T2 or after a
// reboot, is taken at its word; so is what is there, and wrong.
func (l *Lease) fillFrom(old Lease, said dhcpv4.Options) {
	silent := func(codes ...uint8) bool {
		for _, c := range codes {
			if _, ok := said[c]; ok {
				return false
			}
		}
		return true
	}
	if silent(optRouter, optStaticRoute, optClassless, optMSClassless) {
		l.Routers, l.Routes = old.Routers, old.Routes
	}
	if silent(optDNS) {
		l.DNS = old.DNS
	}
	if silent(optDomain) {
		l.Domain = old.Domain
	}
	if silent(optSearch) {
		l.Search = old.Search
	}
	if silent(optNTP) {
		l.NTP = old.NTP
	}
	if silent(optMTU) {
		l.MTU = old.MTU
	}
}

// options are the options of a reply, and what was found wrong with them.
type options struct {
	all     dhcpv4.Options
	remarks []string
}

func (o *options) remark(format string, args ...any) {
	o.remarks = append(o.remarks, fmt.Sprintf(format, args...))
}

// address reads yiaddr with the mask of option 1.
func (o *options) address(a netip.Addr, known netip.Prefix) (netip.Prefix, error) {
	if !isHost(a) {
		return netip.Prefix{}, errors.New("is not an address for a host")
	}
	bits, err := o.mask()
	if err != nil {
		if !known.IsValid() {
			return netip.Prefix{}, err
		}
		if _, sent := o.all[optSubnetMask]; sent {
			o.remark("ack of %s %v: /%d is kept", a, err, known.Bits())
		}
		bits = known.Bits()
	}
	p := netip.PrefixFrom(a, bits)
	if bits <= 30 { // RFC 3021: a /31 has neither
		switch subnet := p.Masked(); a {
		case subnet.Addr():
			return netip.Prefix{}, fmt.Errorf("is the network address of %s", subnet)
		case broadcastOf(subnet):
			return netip.Prefix{}, fmt.Errorf("is the broadcast address of %s", subnet)
		}
	}
	return p, nil
}

// mask reads option 1. The class of the address is no substitute (B53): it has
// not been right for any network since 1993.
func (o *options) mask() (int, error) {
	v, ok := o.all[optSubnetMask]
	switch {
	case !ok:
		return 0, errors.New("has no subnet mask (option 1)")
	case len(v) != 4:
		return 0, fmt.Errorf("has a subnet mask (option 1) of %d bytes", len(v))
	}
	ones, size := net.IPMask(v).Size()
	if size == 0 || ones == 0 {
		return 0, fmt.Errorf("has the subnet mask (option 1) %s, which is none", net.IP(v))
	}
	return ones, nil
}

func broadcastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	host := uint32(math.MaxUint32) >> p.Bits()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|host)
	return netip.AddrFrom4(b)
}

// times reads options 51, 58 and 59.
func (o *options) times(l *Lease) error {
	s, ok := o.seconds(optLeaseTime)
	switch {
	case !ok:
		return errors.New("has no lease time (option 51)") // a MUST of RFC 2131, table 3
	case s == 0:
		return errors.New("has a lease time of 0 (option 51)")
	case s == infiniteSeconds:
		l.Lifetime, l.T1, l.T2 = Infinite, Infinite, Infinite
		return nil
	}
	l.Lifetime = time.Duration(s) * time.Second
	t1, _ := o.seconds(optT1)
	t2, _ := o.seconds(optT2)
	sane := true
	l.T1, l.T2, sane = timers(l.Lifetime, time.Duration(t1)*time.Second, time.Duration(t2)*time.Second)
	if !sane {
		o.remark("T1 %d s and T2 %d s (options 58 and 59) do not fit a lease of %d s: %s and %s are used",
			t1, t2, s, l.T1, l.T2)
	}
	return nil
}

// seconds reads an option of seconds; false when it is missing or malformed.
func (o *options) seconds(code uint8) (uint32, bool) {
	v := o.all[code]
	if len(v) != 4 {
		if _, sent := o.all[code]; sent {
			o.remark("option %d is %d bytes long, not 4", code, len(v))
		}
		return 0, false
	}
	return binary.BigEndian.Uint32(v), true
}

// timers returns T1 and T2 for a lease, in place of what the server said where
// that is missing (0) or senseless: RFC 2131, 4.4.5, wants T1 < T2 < lifetime, and
// 50 and 87.5 % where nothing is said. sane is false when something was said and
// not taken.
func timers(lifetime, t1, t2 time.Duration) (_, _ time.Duration, sane bool) {
	if lifetime == Infinite {
		return Infinite, Infinite, true
	}
	said1, said2 := t1 != 0, t2 != 0
	if !said1 {
		t1 = lifetime / 2
	}
	if !said2 {
		// Not lifetime*7/8: that overflows for 0xfffffffe seconds (B26).
		t2 = lifetime - lifetime/8
	}
	if 0 < t1 && t1 < t2 && t2 < lifetime {
		return t1, t2, true
	}
	return lifetime / 2, lifetime - lifetime/8, !said1 && !said2
}

// addrs reads an option that is a list of hosts.
func (o *options) addrs(code uint8, what string) []netip.Addr {
	v, ok := o.all[code]
	if !ok {
		return nil
	}
	if len(v) == 0 || len(v)%4 != 0 {
		o.remark("option %d (%s) is %d bytes long, not a multiple of 4: not used", code, what, len(v))
		return nil
	}
	list := make([]netip.Addr, 0, len(v)/4)
	for ; len(v) > 0; v = v[4:] {
		a := netip.AddrFrom4([4]byte(v))
		switch {
		case isHost(a):
			list = append(list, a)
		case !a.IsUnspecified(): // home routers fill up the list with 0.0.0.0
			o.remark("option %d (%s): %s is not a host", code, what, a)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list
}

// domain reads option 15. What is no domain name is left out: it would end in a
// resolv.conf.
func (o *options) domain() string {
	v, ok := o.all[optDomain]
	if !ok {
		return ""
	}
	name := strings.TrimSuffix(strings.TrimRight(string(v), "\x00"), ".")
	if !isDomain(name) {
		o.remark("option 15 (domain) %.64q is not a domain name: not used", name)
		return ""
	}
	return name
}

// mtu reads option 26.
func (o *options) mtu() int {
	v, ok := o.all[optMTU]
	if !ok {
		return 0
	}
	if len(v) != 2 || binary.BigEndian.Uint16(v) < minMTU {
		o.remark("option 26 (mtu) is %x, not two bytes of %d or more: not used", v, minMTU)
		return 0
	}
	return int(binary.BigEndian.Uint16(v))
}
