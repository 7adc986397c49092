package ovnnb

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

const (
	macText = "0a:58:0a:4d:00:05"
	uid     = "69611cd1-cfcd-414f-afea-5669dc947fb1"
)

var web = engine.Pod{Namespace: "shop", Name: "web-0", UID: uid}

func mac(t testing.TB, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func lease(t testing.TB, w engine.Workload, s network.PortSecurity) engine.Publication {
	return engine.Publication{
		Workload: w, HardwareAddr: mac(t, macText), Addr: netip.MustParsePrefix("10.77.0.50/24"), OVN: true, PortSecurity: s,
	}
}

// What is written of a port, from each state that OVN-Kubernetes leaves it in.
func TestP14Columns(t *testing.T) {
	const m = macText
	free := port{Addresses: []string{m}, PortSecurity: []string{m}}
	auto := m + " 10.77.0.50 0.0.0.0 ::/0"
	for _, row := range []struct {
		name     string
		port     port
		workload engine.Workload
		security network.PortSecurity
		lease    columns
		without  columns
	}{
		{"OK as OVN-Kubernetes makes it", free, engine.Container, network.PortSecurityAuto,
			columns{[]string{m + " 10.77.0.50"}, []string{auto}}, columns{[]string{m}, []string{m}}},
		{"OK mac", free, engine.Container, network.PortSecurityMAC,
			columns{[]string{m + " 10.77.0.50"}, []string{m}}, columns{[]string{m}, []string{m}}},
		{"OK address", free, engine.Container, network.PortSecurityAddress,
			columns{[]string{m + " 10.77.0.50"}, []string{m + " 10.77.0.50"}}, columns{[]string{m}, []string{m}}},
		{"OK a VM is not pinned", free, engine.VM, network.PortSecurityAuto,
			columns{[]string{m + " 10.77.0.50"}, []string{m}}, columns{[]string{m}, []string{m}}},
		{"OK a VM that its network pins", free, engine.VM, network.PortSecurityAddress,
			columns{[]string{m + " 10.77.0.50"}, []string{m + " 10.77.0.50"}}, columns{[]string{m}, []string{m}}},
		{"OK the lease before", port{Addresses: []string{m + " 10.77.0.9"}, PortSecurity: []string{m + " 10.77.0.9 0.0.0.0 ::/0"}}, engine.Container, network.PortSecurityAuto,
			columns{[]string{m + " 10.77.0.50"}, []string{auto}}, columns{[]string{m}, []string{m}}},
		{"OK unknown stays", port{Addresses: []string{m, "unknown"}, PortSecurity: []string{m}}, engine.Container, network.PortSecurityAuto,
			columns{[]string{m + " 10.77.0.50", "unknown"}, []string{auto}}, columns{[]string{m, "unknown"}, []string{m}}},
		{"OK port security is off", port{Addresses: []string{m}}, engine.Container, network.PortSecurityAuto,
			columns{[]string{m + " 10.77.0.50"}, nil}, columns{[]string{m}, nil}},
		{"OK port security is off, but wanted", port{Addresses: []string{m}}, engine.Container, network.PortSecurityAddress,
			columns{[]string{m + " 10.77.0.50"}, []string{m + " 10.77.0.50"}}, columns{[]string{m}, []string{m}}},
		{"OK an IPv6 address of the pod", port{Addresses: []string{m + " 2001:db8::5"}, PortSecurity: []string{m + " 2001:db8::5"}}, engine.Container, network.PortSecurityAddress,
			columns{[]string{m + " 10.77.0.50 2001:db8::5"}, []string{m + " 10.77.0.50 2001:db8::5"}}, columns{[]string{m + " 2001:db8::5"}, []string{m}}},
		{"OK upper case", port{Addresses: []string{strings.ToUpper(m)}, PortSecurity: []string{strings.ToUpper(m)}}, engine.Container, network.PortSecurityMAC,
			columns{[]string{strings.ToUpper(m) + " 10.77.0.50"}, []string{m}}, columns{[]string{strings.ToUpper(m)}, []string{m}}},
		{"OK dynamic is OVN's own", port{Addresses: []string{m, m + " dynamic"}, PortSecurity: []string{m}}, engine.Container, network.PortSecurityMAC,
			columns{[]string{m + " 10.77.0.50", m + " dynamic"}, []string{m}}, columns{[]string{m, m + " dynamic"}, []string{m}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := row.port.withLease(lease(t, row.workload, row.security))
			if diff := cmp.Diff(row.lease, got, cmp.AllowUnexported(columns{})); diff != "" {
				t.Errorf("with a lease (-want +got):\n%s", diff)
			}
			row.port.Addresses, row.port.PortSecurity = got.addresses, got.security
			if again := row.port.withLease(lease(t, row.workload, row.security)); !row.port.has(again) {
				t.Errorf("written again it changes: %+v, then %+v", got, again)
			}
		})
		t.Run(row.name+", then withdrawn", func(t *testing.T) {
			got := row.port.withoutLease()
			if diff := cmp.Diff(row.without, got, cmp.AllowUnexported(columns{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whose a port is. Everything but the pod's own is another's.
func TestP13OwnPort(t *testing.T) {
	own := port{
		Name: "shop.office.lan_shop_web-0", Addresses: []string{macText},
		Options:     map[string]string{optionUID: uid, "requested-chassis": "n1"},
		ExternalIDs: map[string]string{idNAD: "shop/office-lan", "namespace": "shop", "pod": "true"},
	}
	for _, row := range []struct {
		name   string
		change func(*port)
		want   bool
	}{
		{"OK own", func(*port) {}, true},
		{"OK second interface of the NAD", func(p *port) {
			p.Name, p.ExternalIDs = "shop.office.lan.1_shop_web-0", map[string]string{idNAD: "shop/office-lan/1"}
		}, true},
		{"OK a NAD of another namespace", func(p *port) {
			p.Name, p.ExternalIDs = "infra.office.lan_shop_web-0", map[string]string{idNAD: "infra/office-lan"}
		}, false}, // own, but not on this network
		{"bad earlier pod of that name", func(p *port) { p.Options = map[string]string{optionUID: "another"} }, false},
		{"bad port without a pod", func(p *port) { p.Options = nil }, false},
		{"bad default network", func(p *port) { p.Name, p.ExternalIDs = "shop_web-0", map[string]string{"pod": "true"} }, false},
		{"bad another network", func(p *port) { p.ExternalIDs = map[string]string{idNAD: "shop/other"} }, false},
		{"bad another pod's name", func(p *port) { p.Name = "shop.office.lan_shop_web-1" }, false},
		{"bad name that only ends alike", func(p *port) { p.Name = "shop.office.lan_workshop_web-0" }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := own
			row.change(&p)
			if got := p.of(web, "shop/office-lan"); got != row.want {
				t.Errorf("%+v: own is %v, want %v", p, got, row.want)
			}
		})
	}
	if own.of(engine.Pod{Namespace: "shop", Name: "web-0"}, "shop/office-lan") {
		t.Error("a pod without UID owns a port")
	}
}

func TestChoose(t *testing.T) {
	make := func(key, m string) port {
		return port{
			Name: strings.NewReplacer("/", ".", "-", ".").Replace(key) + "_shop_web-0", Addresses: []string{m},
			Options: map[string]string{optionUID: uid}, ExternalIDs: map[string]string{idNAD: key},
		}
	}
	first, second := make("shop/office-lan", macText), make("shop/office-lan/1", "0a:58:0a:4d:00:06")
	other := make("shop/other", "0a:58:0a:4d:00:07")
	slot := publish.Slot{Pod: web, NAD: "shop/office-lan", IfName: "net1"}
	for _, row := range []struct {
		name   string
		ports  []port
		mac    string
		others []string
		lease  bool
		want   []string
		err    string
	}{
		{"OK by MAC", []port{first, second, other}, "0a:58:0a:4d:00:06", nil, true, []string{second.Name}, ""},
		{"OK nothing there, nothing to take away", []port{other}, "", nil, false, nil, ""},
		{"OK a reset spares what the other interface has", []port{first, second}, "", []string{macText}, false, []string{second.Name}, ""},
		{"OK a reset of all", []port{first, second, other}, "", nil, false, []string{first.Name, second.Name}, ""},
		{"OK a withdrawal by the last lease's MAC", []port{first, second}, macText, nil, false, []string{first.Name}, ""},
		{"bad no port", []port{other}, macText, nil, true, nil, "has no port"},
		{"bad another MAC", []port{first}, "0a:58:0a:4d:00:09", nil, true, nil, "was got with"},
		{"bad two of one MAC", []port{first, make("shop/office-lan/1", macText)}, macText, nil, true, nil, "both have the MAC"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var m net.HardwareAddr
			if row.mac != "" {
				m = mac(t, row.mac)
			}
			var others []net.HardwareAddr
			for _, o := range row.others {
				others = append(others, mac(t, o))
			}
			got, err := choose(row.ports, slot, m, others, row.lease)
			var names []string
			for _, p := range got {
				names = append(names, p.Name)
			}
			if diff := cmp.Diff(row.want, names); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (row.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("error %v, want %q", err, row.err)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	full := TLS{"/ca", "/cert", "/key"}
	for _, row := range []struct {
		address string
		tls     TLS
		ok      bool
	}{
		{Auto, TLS{}, true},
		{"unix:/run/ovn/ovnnb_db.sock", TLS{}, true},
		{"ssl:10.0.0.1:6641,ssl:[fd00::1]:6641", full, true},
		{"ssl:10.0.0.1:6641", TLS{}, false},
		{"/run/ovn/ovnnb_db.sock", TLS{}, false},
		{"tcp:10.0.0.1:6641,", TLS{}, false},
		{"", TLS{}, false},
	} {
		if _, err := New(Config{Address: row.address, TLS: row.tls}); (err == nil) != row.ok {
			t.Errorf("address %q: %v, want ok %v", row.address, err, row.ok)
		}
	}
}

// What the columns hold comes from another program.
func FuzzElement(f *testing.F) {
	f.Add(macText + " 10.77.0.50 2001:db8::1")
	f.Add("unknown")
	f.Add(macText + " dynamic")
	f.Add("")
	f.Fuzz(func(t *testing.T, e string) {
		p := port{Addresses: []string{e}, PortSecurity: []string{e}}
		c := p.withoutLease()
		q := port{Addresses: c.addresses, PortSecurity: c.security}
		if !q.has(q.withoutLease()) {
			t.Errorf("%q: taken away twice it changes: %q", e, c)
		}
		if p.hardwareAddr() == nil {
			return
		}
		c = p.withLease(lease(t, engine.Container, network.PortSecurityAuto))
		q = port{Addresses: c.addresses, PortSecurity: c.security}
		if !q.has(q.withLease(lease(t, engine.Container, network.PortSecurityAuto))) {
			t.Errorf("%q: written twice it changes: %q", e, c)
		}
	})
}
