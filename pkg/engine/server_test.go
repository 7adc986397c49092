package engine

import (
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// server is a DHCP server with a pool. Clients are known by option 61, else by
// hardware address.
type server struct {
	w        *world
	id       netip.Addr
	first    netip.Addr
	lifetime time.Duration
	bits     int // of the mask
	mtu      uint16
	silent   bool
	nak      bool // refuses every REQUEST
	noAck    bool // has no answer to any REQUEST
	noMask   bool
	held     map[string]netip.Addr
	releases int
	declined map[netip.Addr]bool
	routes   []*dhcpv4.Route // option 121

	sawBroadcast bool       // the BROADCAST flag
	sawClientID  bool       // option 61
	sawHostname  string     // option 12 of the last message
	wish         netip.Addr // option 50 of the last DISCOVER
}

// answer is called under the world's lock.
func (s *server) answer(m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	s.sawHostname = m.HostName()
	client := string(m.Options.Get(dhcpv4.OptionClientIdentifier))
	if client == "" {
		client = string(m.ClientHWAddr)
	}
	if m.MessageType() == dhcpv4.MessageTypeRelease {
		if ip, _ := netip.AddrFromSlice(m.ClientIPAddr.To4()); s.held[client] == ip {
			delete(s.held, client)
			s.releases++
		}
		return nil
	}
	if m.MessageType() == dhcpv4.MessageTypeDecline {
		asked, _ := netip.AddrFromSlice(m.RequestedIPAddress().To4())
		delete(s.held, client)
		s.declined[asked] = true
		return nil
	}
	s.sawBroadcast = s.sawBroadcast || m.IsBroadcast()
	s.sawClientID = s.sawClientID || m.Options.Has(dhcpv4.OptionClientIdentifier)
	if m.MessageType() == dhcpv4.MessageTypeDiscover {
		s.wish, _ = netip.AddrFromSlice(m.RequestedIPAddress().To4())
	}
	if s.silent {
		return nil
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return s.reply(m, dhcpv4.MessageTypeOffer, s.addressFor(client))
	case dhcpv4.MessageTypeRequest:
		if s.noAck {
			return nil
		}
		asked, _ := netip.AddrFromSlice(m.RequestedIPAddress().To4())
		if !asked.IsValid() {
			asked, _ = netip.AddrFromSlice(m.ClientIPAddr.To4())
		}
		if s.nak || asked != s.addressFor(client) {
			return s.reply(m, dhcpv4.MessageTypeNak, netip.Addr{})
		}
		s.held[client] = asked
		return s.reply(m, dhcpv4.MessageTypeAck, asked)
	}
	return nil
}

func (s *server) addressFor(client string) netip.Addr {
	if a, ok := s.held[client]; ok {
		return a
	}
	taken := maps.Clone(s.declined)
	for _, a := range s.held {
		taken[a] = true
	}
	a := s.first
	for taken[a] {
		a = a.Next()
	}
	return a
}

func (s *server) reply(m *dhcpv4.DHCPv4, t dhcpv4.MessageType, addr netip.Addr) *dhcpv4.DHCPv4 {
	r, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(t),
		dhcpv4.WithServerIP(s.id.AsSlice()), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(s.id.AsSlice())))
	if err != nil {
		s.w.t.Errorf("reply: %v", err)
		return nil
	}
	if t == dhcpv4.MessageTypeNak {
		return r
	}
	r.YourIPAddr = addr.AsSlice()
	if !s.noMask {
		r.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(s.bits, 32)))
	}
	r.UpdateOption(dhcpv4.OptRouter(net.IPv4(10, 77, 0, 1)))
	r.UpdateOption(dhcpv4.OptDNS(net.IPv4(10, 77, 0, 3)))
	r.UpdateOption(dhcpv4.OptDomainName("site.example"))
	r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(s.lifetime))
	if s.routes != nil {
		r.UpdateOption(dhcpv4.OptClasslessStaticRoute(s.routes...))
	}
	if s.mtu > 0 {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{byte(s.mtu >> 8), byte(s.mtu)}))
	}
	return r
}
