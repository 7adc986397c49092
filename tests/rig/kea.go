package rig

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Kea is a running kea-dhcp4.
type Kea struct {
	*Process
	leaseFile
	cfg ServerConfig
}

var _ Server = (*Kea)(nil)

// StartKea is a StartFunc.
func StartKea(t testing.TB, n *Netns, cfg ServerConfig) Server {
	t.Helper()
	file := newLeaseFile(t, cfg.LeaseFile, "kea.csv", parseKeaLeases)
	cfg.LeaseFile = file.path
	folder := t.TempDir()
	conf := filepath.Join(folder, "kea.json")
	b, err := json.Marshal(keaConfig(cfg))
	if err != nil {
		t.Fatalf("encode Kea's configuration: %v", err)
	}
	if err := os.WriteFile(conf, b, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("kea-dhcp4", "-c", conf)
	cmd.Env = append(os.Environ(), "KEA_LOCKFILE_DIR="+folder, "KEA_PIDFILE_DIR="+folder)
	k := &Kea{leaseFile: file, cfg: cfg}
	k.Process = n.Start(t, "kea-dhcp4 in "+n.Name, cmd)
	k.Lines.Await(t, "readiness of Kea", 0, Patience, func(line string) bool {
		return strings.Contains(line, "DHCP4_STARTED")
	})
	return k
}

// Config is what it was started with.
func (k *Kea) Config() ServerConfig { return k.cfg }

type object = map[string]any

func keaConfig(cfg ServerConfig) object {
	const infinite = 0xffffffff
	subnet := object{
		"id":     1,
		"subnet": cfg.Subnet.Masked().String(),
		"pools":  []object{{"pool": cfg.First.String() + " - " + cfg.Last.String()}},
		"option-data": []object{
			{"name": "routers", "data": cfg.Subnet.Addr().String()},
			{"name": "domain-name-servers", "data": cfg.Subnet.Addr().String()},
			{"name": "domain-name", "data": "site.example"},
		},
		"valid-lifetime": infinite,
	}
	if cfg.Lifetime > 0 {
		subnet["valid-lifetime"] = int(cfg.Lifetime.Seconds())
	}
	if cfg.T1 > 0 {
		subnet["renew-timer"] = int(cfg.T1.Seconds())
		subnet["rebind-timer"] = int(cfg.T2.Seconds())
	}
	return object{"Dhcp4": object{
		"interfaces-config": object{"interfaces": []string{cfg.Interface}, "dhcp-socket-type": "raw"},
		"lease-database":    object{"type": "memfile", "persist": true, "name": cfg.LeaseFile, "lfc-interval": 0},
		"authoritative":     true,
		"subnet4":           []object{subnet},
		"loggers": []object{{
			"name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 45,
			"output_options": []object{{"output": "stdout", "flush": true}},
		}},
	}}
}

// parseKeaLeases reads a memfile: a journal in which a later row of an address
// replaces an earlier one. A lifetime of 0 says that the lease was given back, state 2
// that it has expired.
func parseKeaLeases(text string) []Held {
	rows := map[netip.Addr]Held{}
	for i, line := range strings.Split(text, "\n") {
		f := strings.Split(line, ",")
		if i == 0 || len(f) < 9 {
			continue
		}
		addr, err := netip.ParseAddr(f[0])
		if err != nil {
			continue
		}
		if f[3] == "0" || len(f) > 9 && f[9] == "2" {
			delete(rows, addr)
			continue
		}
		rows[addr] = Held{MAC: f[1], ClientID: f[2], Addr: addr, Hostname: f[8]}
	}
	held := make([]Held, 0, len(rows))
	for _, h := range rows {
		held = append(held, h)
	}
	return sortHeld(held)
}
