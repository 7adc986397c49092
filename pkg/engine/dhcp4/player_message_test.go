package dhcp4

import (
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// message builds a server's message; what is not said is as in grant.
func (p *player) message(kind string, args map[string]string) *dhcpv4.DHCPv4 {
	types := map[string]dhcpv4.MessageType{
		"offer": dhcpv4.MessageTypeOffer, "ack": dhcpv4.MessageTypeAck, "nak": dhcpv4.MessageTypeNak,
	}
	addr, bits, _ := strings.Cut(args["0"], "/")
	msg := answer(types[kind], p.m.xid, addr, optServerID, "10.0.0.1")
	if kind != "nak" {
		msg.Options[optLeaseTime] = wireValue(3600)
	}
	if n, err := strconv.Atoi(bits); err == nil {
		msg.Options[optSubnetMask] = net.CIDRMask(n, 32)
	}
	delete(args, "0")
	addresses := map[string]uint8{"server": optServerID, "router": optRouter, "dns": optDNS, "static": optStaticRoute}
	times := map[string]uint8{"lease": optLeaseTime, "t1": optT1, "t2": optT2}
	bytes := map[string]uint8{"routes": optClassless, "msroutes": optMSClassless, "id": optClientID}
	for name, value := range args {
		if code, ok := addresses[name]; ok {
			if value == "none" {
				delete(msg.Options, code)
			} else {
				msg.Options[code] = wireValue(value)
			}
			continue
		}
		if code, ok := times[name]; ok {
			p.seconds(msg, code, value)
			continue
		}
		if code, ok := bytes[name]; ok {
			msg.Options[code] = p.hex(value)
			continue
		}
		switch name {
		case "mtu":
			n, _ := strconv.Atoi(value)
			msg.Options[optMTU] = []byte{byte(n >> 8), byte(n)}
		case "domain":
			msg.Options[optDomain] = []byte(value)
		case "message":
			msg.Options[optMessage] = []byte(strings.ReplaceAll(value, "_", " "))
		case "rapid":
			msg.Options[optRapidCommit] = nil
		case "relay":
			msg.GatewayIPAddr = net.ParseIP(value).To4()
		case "from": // of the datagram
		case "mac":
			msg.ClientHWAddr = p.mac(value)
		case "xid":
			n, _ := strconv.Atoi(value)
			msg.TransactionID = p.xids[n-1]
		default:
			p.t.Fatalf("unknown argument %q", name)
		}
	}
	return msg
}

func (p *player) seconds(msg *dhcpv4.DHCPv4, code uint8, value string) {
	switch value {
	case "none":
		delete(msg.Options, code)
	case "infinite":
		msg.Options[code] = wireValue(infiniteSeconds)
	default:
		msg.Options[code] = wireValue(int(p.duration(value) / time.Second))
	}
}

func (p *player) mac(s string) net.HardwareAddr {
	if s == "" {
		return nil
	}
	mac, err := net.ParseMAC(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return mac
}
