package dhcp4

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// overloaded is an ACK whose fields 'file' and 'sname' begin with these bytes, and
// whose option 52 has the value overload; more are further options.
func overloaded(overload byte, file, sname []byte, more ...any) []byte {
	options := append(grant(optOverload, []byte{overload}), more...)
	wire := answer(ackType, dhcpv4.TransactionID{}, "10.0.0.5", options...).ToBytes()
	copy(wire[fileAt:fileEnd], file)
	copy(wire[snameAt:fileAt], sname)
	return wire
}

func TestDecode(t *testing.T) {
	router := []byte{optRouter, 4, 10, 0, 0, 1, optEnd}
	domain := []byte{optDomain, 1, 'a', optEnd}
	full := func(size int) []byte { // up to the last byte, with no room for an end
		return append([]byte{optDomain, byte(size - 2)}, bytes.Repeat([]byte{'a'}, size-2)...)
	}
	for _, tt := range []struct {
		name        string
		wire        []byte
		want        dhcpv4.Options // besides those of grant; nil: none
		file, sname string
		err         string
	}{
		{name: "OK no overload", wire: answer(ackType, dhcpv4.TransactionID{}, "10.0.0.5", grant()...).ToBytes()},
		{name: "OK file", wire: overloaded(1, router, []byte("server")), want: dhcpv4.Options{optOverload: {1}, optRouter: {10, 0, 0, 1}}, sname: "server"},
		{name: "OK sname", wire: overloaded(2, []byte("boot"), router), want: dhcpv4.Options{optOverload: {2}, optRouter: {10, 0, 0, 1}}, file: "boot"},
		{name: "OK both", wire: overloaded(3, router, domain), want: dhcpv4.Options{optOverload: {3}, optRouter: {10, 0, 0, 1}, optDomain: {'a'}}},
		{
			// RFC 3396, 5: options, then file, then sname.
			name: "OK one option in three fields",
			wire: overloaded(3, []byte{optMessage, 2, 'c', 'd', optEnd}, []byte{optMessage, 2, 'e', 'f', optEnd}, optMessage, []byte("ab")),
			want: dhcpv4.Options{optOverload: {3}, optMessage: []byte("abcdef")},
		},
		{name: "OK pad before and between", wire: overloaded(1, append([]byte{optPad, optDomain, 1, 'a', optPad}, router...), nil), want: dhcpv4.Options{optOverload: {1}, optRouter: {10, 0, 0, 1}, optDomain: {'a'}}},
		{name: "OK nothing after the end", wire: overloaded(1, append(domain[:len(domain):len(domain)], router...), nil), want: dhcpv4.Options{optOverload: {1}, optDomain: {'a'}}},
		{name: "OK no end", wire: overloaded(1, full(128), router), want: dhcpv4.Options{optOverload: {1}, optDomain: bytes.Repeat([]byte{'a'}, 126)}, sname: "\x03\x04\n"},
		{name: "OK empty field", wire: overloaded(3, nil, []byte{optEnd}), want: dhcpv4.Options{optOverload: {3}}},
		{name: "OK overload in a field is not heard", wire: overloaded(1, append([]byte{optOverload, 1, 3}, router...), domain), want: dhcpv4.Options{optOverload: {1}, optRouter: {10, 0, 0, 1}}, sname: string(domain)},
		{name: "OK senseless overload", wire: overloaded(4, router, domain), want: dhcpv4.Options{optOverload: {4}}, file: "\x03\x04\n", sname: string(domain)},
		{name: "bad option beyond file", wire: overloaded(1, []byte{optRouter, 127}, nil), err: "decode options in field 'file' (option 52): "},
		{name: "bad option beyond sname", wire: overloaded(2, nil, []byte{optRouter, 63}), err: "decode options in field 'sname' (option 52): "},
		{name: "bad end within an option", wire: overloaded(1, nil, nil)[:245], err: "decode dhcp message of 245 bytes: "},
		{name: "bad header", wire: make([]byte, 239), err: "decode dhcp message of 239 bytes: "},
		{name: "bad cookie", wire: make([]byte, 300), err: "decode dhcp message of 300 bytes: "},
		{name: "bad nothing", err: "decode dhcp message of 0 bytes: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			msg, err := Decode(tt.wire)
			if text := errorText(err); (text == "") != (tt.err == "") || !strings.HasPrefix(text, tt.err) {
				t.Fatalf("error %q, want %q and the codec's", text, tt.err)
			}
			if err != nil {
				return
			}
			want := answer(ackType, dhcpv4.TransactionID{}, "10.0.0.5", grant()...).Options
			for code, value := range tt.want {
				want[code] = value
			}
			if diff := cmp.Diff(want, msg.Options); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if msg.BootFileName != tt.file || msg.ServerHostName != tt.sname {
				t.Errorf("file %q and sname %q, want %q and %q", msg.BootFileName, msg.ServerHostName, tt.file, tt.sname)
			}
		})
	}
}

// TestDecodeKeepsNothing: a caller may read the next datagram into the same bytes.
func TestDecodeKeepsNothing(t *testing.T) {
	wire := overloaded(3, []byte{optRouter, 4, 10, 0, 0, 1, optEnd}, []byte{optDomain, 1, 'a', optEnd})
	want, err := Decode(bytes.Clone(wire))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := Decode(wire)
	clear(wire)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("message (-before +after):\n%s", diff)
	}
}

// TestOverloadReachesTheLease: what stands in 'file' and 'sname' counts like the
// rest, also an option 121 that is cut in two.
func TestOverloadReachesTheLease(t *testing.T) {
	wire := overloaded(3,
		[]byte{optDNS, 4, 10, 0, 0, 3, optClassless, 4, 16, 10, 9, 10, optEnd},
		[]byte{optClassless, 3, 0, 0, 2, optDomain, 4, 's', 'i', 't', 'e', optEnd})
	msg, err := Decode(wire)
	if err != nil {
		t.Fatal(err)
	}
	l, remarks, err := parseLease(reply{Received: received(msg), kind: ackType}, testLease.Addr)
	if err != nil || len(remarks) > 0 {
		t.Fatalf("remarks %q, error %v", remarks, err)
	}
	want := Lease{DNS: addrs("10.0.0.3"), Domain: "site", Routes: []Route{route("10.9.0.0/16", "10.0.0.2")}}
	if diff := cmp.Diff(want, Lease{DNS: l.DNS, Domain: l.Domain, Routes: l.Routes}, equalAddrs); diff != "" {
		t.Errorf("lease (-want +got):\n%s", diff)
	}
}
