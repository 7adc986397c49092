package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// called runs the program against b and returns what it wrote.
func called(t *testing.T, b *backend, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, environment(map[string]string{"DHCP_ENGINE_SOCKET": listen(t, b)}), &out, &errs)
	return code, out.String(), errs.String()
}

func TestRenewAndRebind(t *testing.T) {
	all := testStatuses()
	for command, rebind := range map[string]bool{"renew": false, "rebind": true} {
		b := &backend{list: all, renewed: all[0]}
		code, stdout, stderr := called(t, b, command, "0a1b2c3d:net1")
		if code != exitOK || !strings.Contains(stdout, "10.77.0.50/24 from server 10.77.0.1 until 2026-11-30T11:59:00Z") {
			t.Errorf("%s: exit code %d: %s%s", command, code, stdout, stderr)
		}
		if diff := cmp.Diff([]any{"renew", all[0].AttachmentID, rebind}, b.calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", command, diff)
		}
	}
	_, stdout, _ := called(t, &backend{list: all, renewed: all[0]}, "renew", "-o", "json", "0a1b2c3d")
	var got api.Status
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all[0], got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}

func TestRenewOfTheUnknown(t *testing.T) {
	b := &backend{list: testStatuses()}
	code, stdout, stderr := called(t, b, "renew", "ffff:net1")
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, `renew: no attachment "ffff:net1"`) || b.calls != nil {
		t.Errorf("exit code %d: %s%s, calls %v", code, stdout, stderr, b.calls)
	}
}

func TestRenewed(t *testing.T) {
	before := testStatuses()[0]
	moved, rebound, endless := before, before, testStatuses()[1]
	moved.Address, rebound.Server = "10.77.0.60/24", "10.77.0.2"
	for want, tt := range map[string]struct{ before, after api.Status }{
		"until 2026-11-30T11:59:00Z (23h59m0s)":                            {before, before},
		"10.77.0.60/24 from server 10.77.0.1":                              {before, moved},
		"(23h59m0s), in place of 10.77.0.50/24":                            {before, moved},
		"from server 10.77.0.2 until":                                      {before, rebound},
		", in place of server 10.77.0.1":                                   {before, rebound},
		"net1 has 10.77.0.51/24 from server 10.77.0.1 for ever":            {endless, endless},
		"from server 10.77.0.1 until 2026-11-30T11:59:00Z (23h59m0s), in ": {before, moved},
	} {
		if got := renewed(tt.before, tt.after, now); !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}

func TestRelease(t *testing.T) {
	all := testStatuses()
	b := &backend{list: all}
	code, stdout, stderr := called(t, b, "release", "0a1b2c3d:net1")
	for _, part := range []string{"of pod default/web-0 (10.77.0.50/24)", "no address afterwards", "--yes"} {
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, part) {
			t.Errorf("without --yes: exit code %d, want %q in %s%s", code, part, stdout, stderr)
		}
	}
	if b.calls != nil {
		t.Errorf("without --yes the engine was asked for %v", b.calls)
	}
	if code, _, stderr := called(t, b, "release", "0a1b2c3d:net1", "--yes"); code != exitUsage || b.calls != nil || !strings.Contains(stderr, "too short") {
		t.Errorf("with a short id: exit code %d, engine was asked for %v: %s", code, b.calls, stderr)
	}
	code, stdout, stderr = called(t, b, "release", "0a1b2c3d0a1b2:net1", "--yes")
	if code != exitOK || !strings.Contains(stdout, "of pod default/web-0 (10.77.0.50/24) has no address now") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if diff := cmp.Diff([]any{"release", all[0].AttachmentID}, b.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// What a release costs goes by what the attachment has: a guest keeps its address, and a
// pod whose interface is gone has none already.
func TestReleaseByState(t *testing.T) {
	const loses = "has no address"
	for state, tt := range map[string]struct {
		before, after string
		loses         bool
	}{
		"BOUND":      {"no address afterwards, until it gets a new sandbox", "no address now", true},
		"REBINDING":  {"no address afterwards", "no address now", true},
		"REPORTED":   {"is reported no longer afterwards, until it gets a new sandbox, and its guest goes on with the address", "is reported no longer, and its guest goes on with the address", false},
		"ORPHANED":   {"gives its address back, which waits for a new sandbox of its pod", "has given its address back", false},
		"SUPERSEDED": {"has nothing to give back any longer", "has ended", false},
		"RELEASING":  {"has nothing to give back any longer", "has ended", false},
	} {
		t.Run(state, func(t *testing.T) {
			s := testStatuses()[0]
			s.State = state
			b := &backend{list: []api.Status{s}}
			code, _, stderr := called(t, b, "release", s.AttachmentID.String())
			if code != exitUsage || !strings.Contains(stderr, tt.before) || !strings.Contains(stderr, "--yes") || strings.Contains(stderr, loses) != tt.loses || b.calls != nil {
				t.Errorf("exit code %d, calls %v, want %q: %s", code, b.calls, tt.before, stderr)
			}
			code, stdout, stderr := called(t, b, "release", "--yes", s.AttachmentID.String())
			if code != exitOK || !strings.Contains(stdout, tt.after) || strings.Contains(stdout, loses) != tt.loses {
				t.Errorf("exit code %d, want %q: %s%s", code, tt.after, stdout, stderr)
			}
		})
	}
}

func testReport() api.ProbeReport {
	return api.ProbeReport{
		Netns: "/run/netns/web", IfName: "net1", HardwareAddr: "02:00:5e:00:53:01", Kind: "macvlan", ClientID: "0102005e005301",
		Discovers: 2, Waited: 5*time.Second + 900*time.Microsecond,
		Offers: []api.Offer{
			{
				Server: "10.77.0.1", From: "10.77.0.1", After: 12*time.Millisecond + 300*time.Microsecond, Discover: 1,
				Address: "10.77.0.50/24", LeaseSeconds: 3600, T1Seconds: 1800, T2Seconds: 3150, Routers: []string{"10.77.0.1"},
				Routes: []api.Route{{Dst: "10.9.0.0/16", Gateway: "10.77.0.2"}, {Dst: "10.10.0.0/16"}},
				DNS:    api.DNS{Nameservers: []string{"10.77.0.3", "10.77.0.4"}, Domain: "site.example"}, MTU: 1400,
				Options: []api.OfferedOption{{Code: 1, Value: "ffffff00"}, {Code: 3, Value: "0a4d0001"}, {Code: 51, Value: "00000e10"}},
				Remarks: []string{"option 15 (domain) is odd"},
			},
			{
				Server: "192.168.1.1", From: "192.168.1.1", Relay: "10.77.0.254", After: 3 * time.Second, Discover: 2, Address: "192.168.1.77",
				Options: []api.OfferedOption{{Code: 54, Value: "c0a80101"}}, Problem: "offer of 192.168.1.77 has no subnet mask (option 1)",
			},
			{Server: "10.77.0.9", Address: "10.77.0.90/24", After: time.Second, Discover: 1, Infinite: true, Options: []api.OfferedOption{}},
		},
		LeftAside: []string{"no offer: nak from 10.77.0.1"},
	}
}

func TestWriteProbe(t *testing.T) {
	silent := api.ProbeReport{Netns: "/run/netns/web", IfName: "net1", HardwareAddr: "02:00:5e:00:53:01", Kind: "veth", Discovers: 2,
		Waited: 5 * time.Second, Offers: []api.Offer{}, Hint: "2 DHCPDISCOVER left net1 and no reply for 02:00:5e:00:53:01 came back"}
	for file, r := range map[string]api.ProbeReport{"probe.txt": testReport(), "probe-silent.txt": silent} {
		var b bytes.Buffer
		if err := writeProbe(&b, r); err != nil {
			t.Fatal(err)
		}
		golden(t, file, b.String())
	}
}

func TestProbe(t *testing.T) {
	b := &backend{report: testReport()}
	code, stdout, stderr := called(t, b, "probe", "--netns", "/run/netns/web", "--interface", "net1", "--client-id", "none", "--broadcast", "--timeout", "2s", "-o", "json")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var got api.ProbeReport
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(testReport(), got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	want := api.ProbeRequest{Netns: "/run/netns/web", IfName: "net1", Timeout: 2 * time.Second, ClientID: "none", Broadcast: true}
	if diff := cmp.Diff([]any{"probe", want}, b.calls); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// Scripts see by the exit code whether a server is there.
func TestProbeThatFindsNobody(t *testing.T) {
	code, stdout, stderr := called(t, &backend{report: api.ProbeReport{IfName: "net1", Hint: "no carrier"}}, "probe", "--netns=/run/netns/web", "--interface=net1")
	if code != exitFailed || !strings.Contains(stdout, "hint: no carrier") || !strings.Contains(stderr, "no server has offered") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}
