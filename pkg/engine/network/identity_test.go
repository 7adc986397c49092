package network

import (
	"encoding/hex"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func web0() Identity {
	return Identity{
		Namespace: "prod", Pod: "web-0", UID: "6f0c", Network: "vlan77", IfName: "net1",
		ContainerID: "4d2f", HardwareAddr: net.HardwareAddr{2, 0, 0x5e, 0, 0x53, 1},
	}
}

// The values in hexadecimal are what servers keep leases under: they must not
// change from release to release.
func TestClientIdentifier(t *testing.T) {
	tests := []struct {
		name   string
		policy string
		change func(*Identity)
		want   string // hexadecimal
		err    string
	}{
		{name: "OK mac", policy: "mac", want: "0102005e005301"},
		{name: "OK none", policy: "none", want: ""},
		{name: "OK duid", policy: "duid", want: "ff" + "bd621c4d" + "0004" + "b7c803ebdd69832faf8bd8ebdc6312be"},
		{name: "OK template", policy: "{namespace}/{pod}:{interface}", want: "00" + hex.EncodeToString([]byte("prod/web-0:net1"))},
		{name: "OK all placeholders", policy: "{namespace}{pod}{name}{uid}{network}{interface}{container}{mac}", want: "00" + hex.EncodeToString([]byte("prodweb-0web-06f0cvlan77net14d2f02:00:5e:00:53:01"))},
		{
			name: "OK as long as an option can be", policy: "{network}", change: func(id *Identity) { id.Network = strings.Repeat("n", 254) },
			want: "00" + strings.Repeat("6e", 254),
		},
		{
			name: "bad one byte longer", policy: "{network}", change: func(id *Identity) { id.Network = strings.Repeat("n", 255) },
			err: `clientID: template "{network}" gives 256 bytes with its type octet, option 61 holds at most 255`,
		},
		{
			name: "bad template of a pod without a pod", policy: "x-{pod}", change: func(id *Identity) { id.Pod = "" },
			err: `clientID: template "x-{pod}": {pod} has no value here (does the runtime tell the pod in CNI_ARGS?)`,
		},
		{
			name: "bad duid without a pod", policy: "duid", change: func(id *Identity) { id.Namespace = "" },
			err: "clientID duid: the runtime told no pod (CNI_ARGS has no K8S_POD_NAMESPACE and K8S_POD_NAME)",
		},
		{
			name: "bad mac of InfiniBand", policy: "mac", change: func(id *Identity) { id.HardwareAddr = make([]byte, 20) },
			err: `clientID mac: "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00" is no Ethernet address`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := web0()
			if tt.change != nil {
				tt.change(&id)
			}
			got, err := Settings{ClientID: tt.policy}.ClientIdentifier(id)
			if diff := cmp.Diff(tt.err, text(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, hex.EncodeToString(got)); diff != "" {
				t.Errorf("identifier (-want +got):\n%s", diff)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// All interfaces of ipvlan on one master have its MAC.
func TestCheckSharedMAC(t *testing.T) {
	const use = `; use "duid", or a template that tells pods apart such as "{namespace}/{pod}/{interface}"`
	derive := `dhcp.mac: "derive" is impossible on an interface that shares its MAC with others; use "keep"`
	tests := []struct {
		name string
		raw  string
		want Problems
	}{
		{"OK duid", `{"clientID":"duid"}`, nil},
		{"OK template of the pod", `{"clientID":"{namespace}/{pod}/{interface}"}`, nil},
		{"OK template of the UID", `{"clientID":"x-{uid}"}`, nil},
		{"OK template of the sandbox", `{"clientID":"{container}"}`, nil},
		{"bad default", `{}`, Problems{`dhcp.clientID: "mac" makes all interfaces with this MAC one client` + use}},
		{"bad none", `{"clientID":"none"}`, Problems{`dhcp.clientID: "none" makes all interfaces with this MAC one client` + use}},
		{
			"bad template that two pods share", `{"clientID":"{network}/{interface}/{mac}/{namespace}"}`,
			Problems{`dhcp.clientID: template "{network}/{interface}/{mac}/{namespace}" can give several pods with this MAC one identifier` + use},
		},
		{"bad derived MAC", `{"clientID":"duid","mac":"derive"}`, Problems{derive}},
		{"bad both", `{"mac":"derive"}`, Problems{`dhcp.clientID: "mac" makes all interfaces with this MAC one client` + use, derive}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Parse([]byte(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			var got Problems
			if err := s.CheckSharedMAC(); err != nil && !errors.As(err, &got) {
				t.Fatalf("error is %v, want Problems", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// The IAID tells interfaces apart and leaves the DUID alone (RFC 4361, 6.1);
// sandbox, UID and MAC are in neither.
func TestDUIDFollowsThePod(t *testing.T) {
	of := func(change func(*Identity)) (iaid, duid string) {
		id := web0()
		change(&id)
		b, err := Settings{ClientID: ClientIDDUID}.ClientIdentifier(id)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[1:5]), string(b[5:])
	}
	iaid, duid := of(func(*Identity) {})
	if i, d := of(func(id *Identity) { id.UID, id.ContainerID, id.HardwareAddr = "other", "other", nil }); i != iaid || d != duid {
		t.Error("a new sandbox is another client")
	}
	if i, d := of(func(id *Identity) { id.IfName = "net2" }); i == iaid || d != duid {
		t.Error("a second interface must differ in its IAID alone")
	}
	if _, d := of(func(id *Identity) { id.Pod = "web-1" }); d == duid {
		t.Error("two pods share a DUID")
	}
	if version, variant := duid[2+6]>>4, duid[2+8]>>6; version != 8 || variant != 2 {
		t.Errorf("UUID of version %d, variant %b", version, variant)
	}
}

func TestHostnameFor(t *testing.T) {
	tests := []struct {
		name     string
		template string
		pod      string
		want     string
	}{
		{"OK pod", "{pod}", "web-0", "web-0"},
		{"OK a pod is called as it is", "{name}", "web-0", "web-0"},
		{"OK none wanted", "", "web-0", ""},
		{"OK no pod, no name", "{pod}", "", ""},
		{"OK text that needs no pod", "printer", "", "printer"},
		{"OK two labels", "{pod}.{namespace}", "web-0", "web-0.prod"},
		{"OK upper case and underscores", "{pod}", "Web_0", "web-0"},
		{"OK no hyphen at the ends", "{pod}", "-web-.-0-", "web.0"},
		{"OK no empty label", "{pod}", "..web..0..", "web.0"},
		{"OK other letters", "{pod}", "wéb", "w-b"},
		{"OK MAC", "{mac}", "x", "02-00-5e-00-53-01"},
		{"OK label cut at 63", "{pod}", strings.Repeat("a", 62) + "-b", strings.Repeat("a", 62)},
		{"OK whole cut at 255", "{pod}", strings.Repeat(strings.Repeat("a", 50)+".", 6), strings.Repeat(strings.Repeat("a", 50)+".", 5)[:254]},
		{"OK nothing left", "{pod}", "___", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := web0()
			id.Pod = tt.pod
			got := Settings{Hostname: tt.template}.HostnameFor(id)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("host name (-want +got):\n%s", diff)
			}
			checkHostname(t, got)
		})
	}
}

func checkHostname(t *testing.T, name string) {
	t.Helper()
	label := `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`
	if !regexp.MustCompile(`^(`+label+`(\.`+label+`)*)?$`).MatchString(name) || len(name) > maxHostname {
		t.Errorf("%q is no legal host name", name)
	}
}

func TestDeriveMAC(t *testing.T) {
	of := func(change func(*Identity)) string {
		id := web0()
		change(&id)
		mac, err := DeriveMAC(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(mac) != 6 || mac[0]&0x03 != 0x02 {
			t.Errorf("%s is not a local unicast address", mac)
		}
		return mac.String()
	}
	// Servers and switches know the pod by it: it stays from release to release.
	if diff := cmp.Diff("0e:a0:d3:08:e0:b0", of(func(*Identity) {})); diff != "" {
		t.Errorf("MAC (-want +got):\n%s", diff)
	}
	first := of(func(*Identity) {})
	if got := of(func(id *Identity) { id.ContainerID, id.UID, id.HardwareAddr = "other", "other", nil }); got != first {
		t.Errorf("a new sandbox has %s, the old one had %s", got, first)
	}
	seen := map[string]string{first: "web-0"}
	for name, change := range map[string]func(*Identity){
		"namespace": func(id *Identity) { id.Namespace = "test" },
		"pod":       func(id *Identity) { id.Pod = "web-1" },
		"network":   func(id *Identity) { id.Network = "vlan78" },
		"interface": func(id *Identity) { id.IfName = "net2" },
		// Without the lengths in the digest these two would be web-0 too.
		"border between fields":       func(id *Identity) { id.Namespace, id.Pod = "prodw", "eb-0" },
		"border between other fields": func(id *Identity) { id.Network, id.IfName = "vlan77n", "et1" },
	} {
		mac := of(change)
		if other, taken := seen[mac]; taken {
			t.Errorf("%s and %s have the same MAC %s", name, other, mac)
		}
		seen[mac] = name
	}
	if _, err := DeriveMAC(Identity{Network: "vlan77", IfName: "net1"}); !errors.Is(err, ErrNoPod) {
		t.Errorf("without a pod: got %v, want %v", err, ErrNoPod)
	}
}
