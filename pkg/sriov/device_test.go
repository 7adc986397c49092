package sriov

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

func TestFind(t *testing.T) {
	tree := newTree(t)
	h := openTree(t, tree)
	got, err := h.Find("0000:01:10.2")
	must(t, err)
	want := Device{
		Address: vf1, ID: ID{0x8086, 0x10ca}, Class: "02", Driver: "vfio-pci", Group: "12", PF: pf, VF: 1,
		Modalias: "pci:v00008086d000010CAsv00000000sd00000000bc02sc00i00",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("virtual function (-want +got):\n%s", diff)
	}
	got, err = h.Find(strings.ToUpper(pf))
	must(t, err)
	if got.Driver != "igb" || got.VFs != 7 || got.PF != "" {
		t.Errorf("physical function: %+v", got)
	}
	// A device that came after Open, beside one that ghw does not understand.
	must(t, tree.Put("sys/bus/pci/devices/0000:09:00.0/modalias", "acpi:odd\n"))
	must(t, tree.Add(sysfstest.Function{Address: "10000:e1:00.0", ID: "1af4:1041"}))
	if got, err = h.Find("10000:E1:00.0"); err != nil || got.ID.String() != "1af4:1041" || got.Driver != "" {
		t.Errorf("new device: %+v, %v", got, err)
	}
	if _, err := h.Find("0000:09:00.0"); err == nil || !strings.Contains(err.Error(), `modalias "acpi:odd" is not understood`) {
		t.Errorf("odd device: %v", err)
	}
}

// What is no PCI address, no device, and no virtual function of a network
// interface: one clear error each.
func TestBadDevices(t *testing.T) {
	tree := newTree(t)
	must(t, tree.Add(sysfstest.Function{Address: "0000:02:00.0", ID: "1b36:0010", Class: "010802", VFs: 4}))
	must(t, tree.Add(sysfstest.Function{Address: "0000:02:00.1", ID: "1b36:0010", Class: "010802", PF: "0000:02:00.0"}))
	must(t, tree.Add(sysfstest.Function{Address: "0000:03:00.0", ID: "8086:1209"}))
	h := openTree(t, tree)
	for _, tt := range []struct {
		name, address, err string
	}{
		{"bad address", "eth0", `"eth0" is no PCI address, such as 0000:3b:02.4`},
		{"bad empty", "", `"" is no PCI address, such as 0000:3b:02.4`},
		{"bad way out", "0000:01:10.0/../0000:01:00.0", `"0000:01:10.0/../0000:01:00.0" is no PCI address, such as 0000:3b:02.4`},
		{"bad nothing there", "0000:01:1f.7", "0000:01:1f.7: no such PCI device is on this node"},
		{"bad no NIC", "0000:02:00.1", "device 0000:02:00.1 (1b36:0010) is no network interface: its class is 01"},
		{"bad PF", pf, "device 0000:01:00.0 (8086:10c9) is a physical function, not one of its virtual functions"},
		{"bad no VF", "0000:03:00.0", "device 0000:03:00.0 (8086:1209) is no virtual function"},
		{"OK", vf0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := h.Find(tt.address)
			if err == nil {
				err = d.CheckVF()
			}
			if got := errorText(err); got != tt.err {
				t.Errorf("got %q, want %q", got, tt.err)
			}
		})
	}
	if _, err := h.Find("0000:01:1f.7"); !errors.Is(err, ErrNoDevice) {
		t.Errorf("%v is not ErrNoDevice", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"0000:3b:02.4": "0000:3b:02.4", "0000:3B:1F.7": "0000:3b:1f.7", "10000:e1:00.0": "10000:e1:00.0", "00010000:e1:00.0": "10000:e1:00.0",
		"3b:02.4": "", "0000:3b:20.0": "", "0000:3b:02.8": "", "0000:3b:02": "", "000:3b:02.4": "", "100000000:3b:02.4": "",
		"+000:3b:02.4": "", "0_00:3b:02.4": "", "0000:3b:02.4\n": "", " 0000:3b:02.4": "", "0000:3b:2.4": "",
	} {
		got, err := ParseAddress(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{vf0, "10000:e1:00.0", "0000:3b:02", "....:..:..", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseAddress(s)
		if err != nil {
			return
		}
		if again, err := ParseAddress(got); err != nil || again != got {
			t.Errorf("%q: %q reads as %q, %v", s, got, again, err)
		}
		if strings.ContainsAny(got, "/ \n") {
			t.Errorf("%q: %q is no name of a file", s, got)
		}
	})
}

func TestPolicy(t *testing.T) {
	igbvf, iavf := ID{0x8086, 0x10ca}, ID{0x8086, 0x154c}
	for _, tt := range []struct {
		name   string
		policy Policy
		err    string
	}{
		{"OK all", Policy{}, ""},
		{"OK allowed", Policy{Allow: []ID{iavf, igbvf}}, ""},
		{"OK another denied", Policy{Deny: []ID{iavf}}, ""},
		{"bad not allowed", Policy{Allow: []ID{iavf}}, "devices of kind 8086:10ca are not on the allow-list"},
		{"bad denied", Policy{Allow: []ID{igbvf}, Deny: []ID{igbvf}}, "devices of kind 8086:10ca are on the deny-list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := errorText(tt.policy.Check(Device{ID: igbvf})); got != tt.err {
				t.Errorf("got %q, want %q", got, tt.err)
			}
		})
	}
	for in, want := range map[string]string{"8086:154C": "8086:154c", "8086": "", "8086:": "", "0x8086:154c": "", "8086:154c:0": "", "86:154c": ""} {
		id, err := ParseID(in)
		if (err == nil) != (want != "") || err == nil && id.String() != want {
			t.Errorf("%q: got %s, %v", in, id, err)
		}
	}
}

// B76: an interface is found by the PCI address each time it is asked for, whatever
// it is called by then, and one of a virtio device lies one folder deeper.
func TestB76InterfacesByAddress(t *testing.T) {
	tree := newTree(t)
	h := openTree(t, tree)
	must(t, h.SetOverride(vf0, ""))
	must(t, h.Unbind(vf0))
	if d, err := h.Probe(vf0); err != nil || d != "igbvf" {
		t.Fatalf("probe: %q, %v", d, err)
	}
	before, err := h.Interfaces(vf0)
	must(t, err)
	must(t, tree.Rename(vf0, "enp1s0v0"))
	after, err := h.Interfaces(vf0)
	must(t, err)
	if len(before) != 1 || len(after) != 1 || before[0].Index != after[0].Index || after[0].Name != "enp1s0v0" {
		t.Errorf("before udev %v, afterwards %v", before, after)
	}
	must(t, tree.Put("sys/bus/pci/devices/"+vf1+"/virtio3/net/eth7/ifindex", "7\n"))
	if got, err := h.Interfaces(vf1); err != nil || !cmp.Equal(got, []Interface{{"eth7", 7}}) {
		t.Errorf("virtio: %v, %v", got, err)
	}
}
