package dhcp4

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// codes are the codes of the options in the order in which they stand.
func codes(t *testing.T, b []byte) (codes []uint8) {
	t.Helper()
	for b = b[optionsAt:]; b[0] != optEnd; b = b[2+int(b[1]):] {
		codes = append(codes, b[0])
	}
	return codes
}

func TestEncode(t *testing.T) {
	m, err := dhcpv4.New(dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionHostName, []byte("web-0"))))
	if err != nil {
		t.Fatal(err)
	}
	for code, value := range map[uint8][]byte{
		optMessageType: {3}, optClientID: {1, 2, 0, 0, 0, 0, 5}, optRequestedAddr: {10, 0, 0, 5}, optServerID: {10, 0, 0, 1},
		optParameterList: {1, 3}, optVendorClass: bytes.Repeat([]byte("x"), 300),
	} {
		m.Options[code] = value
	}
	b := Encode(m)
	want := []uint8{optMessageType, optClientID, optRequestedAddr, optServerID, optHostname, optParameterList, optVendorClass, optVendorClass}
	if diff := cmp.Diff(want, codes(t, b)); diff != "" {
		t.Errorf("order of options (-want +got):\n%s", diff)
	}
	// The codec reads the same as from what it writes itself.
	got, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	same, err := dhcpv4.FromBytes(m.ToBytes())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(same.ToBytes(), got.ToBytes()); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestEncodeIsNeverShorterThanBOOTP(t *testing.T) {
	m, err := dhcpv4.New()
	if err != nil {
		t.Fatal(err)
	}
	m.Options = nil
	if b := Encode(m); len(b) != minLen || b[optionsAt] != optEnd {
		t.Errorf("%d bytes, options %x", len(b), b[optionsAt:])
	}
}
