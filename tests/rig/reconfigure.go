package rig

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Reconfigure gives a running Kea another configuration, as an administrator does:
// change is given the one that it was started with, the object below "Dhcp4". The
// leases stay.
func (k *Kea) Reconfigure(t testing.TB, change func(dhcp4 Object)) {
	t.Helper()
	conf := keaConfig(k.cfg)
	change(conf["Dhcp4"].(Object))
	b, err := json.Marshal(conf)
	if err != nil {
		t.Fatalf("encode Kea's configuration: %v", err)
	}
	file := k.cmd.Args[len(k.cmd.Args)-1]
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	mark := k.Lines.Len()
	k.Signal(t, syscall.SIGHUP)
	line, _ := k.Lines.Await(t, "Kea's new configuration", mark, Patience, func(line string) bool {
		return strings.Contains(line, "DHCP4_DYNAMIC_RECONFIGURATION_SUCCESS") ||
			strings.Contains(line, "DHCP4_DYNAMIC_RECONFIGURATION_FAIL")
	})
	if strings.Contains(line, "FAIL") {
		t.Fatalf("Kea refuses its new configuration: %s", line)
	}
}

// KeaSubnet is the one subnet of a configuration of Reconfigure.
func KeaSubnet(dhcp4 Object) Object { return dhcp4["subnet4"].([]Object)[0] }
