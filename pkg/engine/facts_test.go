package engine

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// One network serves all workloads; which one it is follows from the pod and its
// device alone, at every ADD anew.
func TestK15K44K46K85PlanFollowsFromThePod(t *testing.T) {
	tests := []struct {
		name     string
		workload Workload
		vfio     bool
		plan     Plan
	}{
		{"OK K44 container", Container, false, Plan{Configure: true, Keep: true, Release: true}},
		{"OK K46 VM", VM, false, Plan{}},
		{"OK K45 VM with a device on vfio-pci", VM, true, Plan{Borrow: true}},
		{"OK K48 container with a device on vfio-pci", Container, true, Plan{Borrow: true}},
	}
	for _, tt := range tests {
		if got := planFor(tt.workload, tt.vfio); got != tt.plan {
			t.Errorf("%s: plan %+v, want %+v", tt.name, got, tt.plan)
		}
	}
	simulate(t, func(t *testing.T, w *world) {
		e, _ := w.start()
		for i, workload := range []Workload{Container, VM, Container} {
			w.change(func() { w.workload = workload })
			c := "c" + string('1'+rune(i))
			w.space(c, byte(i+1))
			r := request(c, c)
			r.Pod.UID = c
			if _, err := e.Attach(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if got := w.carries(c).IsValid(); got != (workload == Container) {
				t.Errorf("%s: interface has an address: %t", c, got)
			}
			if rec := w.records[net1(c)]; rec.Workload != workload {
				t.Errorf("%s: the record says %v", c, rec.Workload)
			}
		}
	})
}

// K18: a pod and a VM of one network get different addresses of one pool.
func TestK18PodAndVMShareThePool(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		e, _ := w.start()
		w.space("c1", 1)
		pod := mustAttach(t, e, "c1")
		w.change(func() { w.workload = VM })
		w.space("c2", 2)
		r := request("c2", "c2")
		r.Pod.UID = "uid-2"
		vm, err := e.Attach(t.Context(), r)
		if err != nil || vm.Address == pod.Address || !strings.HasPrefix(vm.Address, "10.77.0.") {
			t.Errorf("pod has %s, VM %s, %v", pod.Address, vm.Address, err)
		}
	})
}

func TestSettingsInEffect(t *testing.T) {
	rec := func(w Workload, ovn bool, own, effective string) Record {
		r := Record{Workload: w, OVN: ovn}
		r.DHCP = json.RawMessage(own)
		if effective != "" {
			r.Effective = json.RawMessage(effective)
		}
		return r
	}
	tests := []struct {
		name     string
		rec      Record
		clientID string
		port     network.PortSecurity
		publish  network.Publish
		flag     bool
	}{
		{"OK container", rec(Container, false, ``, ``), "mac", "auto", "eventual", false},
		{"OK container on OVN", rec(Container, true, ``, ``), "mac", "auto", "require", true},
		{"OK container on OVN, eventual", rec(Container, true, `{"publish":"eventual","portSecurity":"address"}`, ``), "mac", "address", "eventual", true},
		{"OK VM", rec(VM, false, ``, ``), "none", "mac", "eventual", false},
		{"OK VM with an identifier of its own", rec(VM, true, `{"clientID":"mac"}`, ``), "mac", "mac", "require", true},
		{"OK what the pod adds counts", rec(VM, false, `{"clientID":"mac"}`, `{"clientID":"duid","publish":"require"}`), "duid", "mac", "require", false},
	}
	for _, tt := range tests {
		s, err := settingsFor(tt.rec)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if s.ClientID != tt.clientID || s.PortSecurity != tt.port || s.Publish != tt.publish || s.Broadcast != tt.flag {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}

// A server knows a VM by the name of its guest, not by that of its pod, unless the
// network says otherwise.
func TestVMIsKnownByItsGuestsName(t *testing.T) {
	for _, tt := range []struct {
		workload    Workload
		guest, dhcp string
		want        string
	}{
		{VM, "mailer", "", "mailer"},
		{VM, "", "", "web-0"}, // nobody says
		{VM, "mailer", `{"hostname":"{pod}"}`, "web-0"},
		{VM, "mailer", `{"hostname":"{name}.{namespace}"}`, "mailer.shop"},
		{Container, "", "", "web-0"},
	} {
		simulate(t, func(t *testing.T, w *world) {
			w.space("c1", 1)
			w.workload, w.cluster.guest = tt.workload, tt.guest
			e, _ := w.start()
			r := request("c1", "c1")
			r.DHCP = json.RawMessage(tt.dhcp)
			if _, err := e.Attach(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if w.server.sawHostname != tt.want {
				t.Errorf("%+v: the server knows it as %q", tt, w.server.sawHostname)
			}
		})
	}
}

// What NAD and pod add to the caller's settings counts at ADD, is on disk, and
// counts after a restart too.
func TestEffectiveSettingsOutliveARestart(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.cluster.nad = "shop/lan"
		w.cluster.dhcp = json.RawMessage(`{"hostname":"till","defaultRoute":"always"}`)
		e, stop := w.start()
		r := request("c1", "c1")
		r.DHCP = json.RawMessage(`{"hostname":"till"}`)
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		rec := w.records[net1("c1")]
		if rec.NAD != "shop/lan" || string(rec.DHCP) != `{"hostname":"till"}` || string(rec.Effective) != string(w.cluster.dhcp) {
			t.Errorf("record %+v", rec)
		}
		if len(rec.Setup.Routes) != 1 {
			t.Errorf("setup %v", rec.Setup)
		}
		stop()
		w.change(func() { w.cluster.away = true }) // a start asks nobody
		w.start()
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		if got := w.records[net1("c1")].Setup; len(got.Routes) != 1 {
			t.Errorf("after a renewal: %v", got)
		}
	})
}

// Settings that the pod changes are those of its next ADD; the same ones are the
// same lease.
func TestRepeatedAddWithOtherEffectiveSettings(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.cluster.dhcp = json.RawMessage(`{"hostname":"a"}`)
		e, _ := w.start()
		mustAttach(t, e, "c1")
		w.since()
		w.change(func() { w.cluster.dhcp = json.RawMessage(`{ "hostname": "a" }`) })
		mustAttach(t, e, "c1")
		wantNotes(t, w)
		w.change(func() { w.cluster.dhcp = json.RawMessage(`{"hostname":"b"}`) })
		mustAttach(t, e, "c1")
		if notes := w.since(); len(notes) == 0 {
			t.Error("other settings change nothing")
		}
	})
}

func TestFactsThatCannotBeHad(t *testing.T) {
	tests := []struct {
		name string
		set  func(*world)
		code uint
		want string
	}{
		{"bad pod is gone", func(w *world) { w.cluster.err = ErrNoPod }, api.CodeTryAgain, "pod shop/web-0 with UID uid-1: the cluster knows no such pod"},
		{"bad API is away", func(w *world) { w.cluster.away = true }, api.CodeTryAgain, "connection refused"},
		{"bad P06 host network", func(w *world) {
			w.cluster.err = api.WithCode(api.CodeConfig, errors.New("pod shop/web-0 is on the host's network"))
		},
			api.CodeConfig, "host's network"},
		{"bad settings of the NAD", func(w *world) { w.cluster.dhcp = json.RawMessage(`{"tiemout":"1s"}`) }, api.CodeConfig, "dhcp.tiemout: unknown key"},
		{"bad error without a code", func(w *world) { w.cluster.err = errors.New("cache is cold") }, api.CodeTryAgain, "cache is cold"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.space("c1", 1)
				tt.set(w)
				e, _ := w.start()
				_, attachErr := e.Attach(t.Context(), request("c1", "c1"))
				for verb, err := range map[string]error{"Prepare": e.Prepare(t.Context(), request("c1", "c1")), "Attach": attachErr} {
					if api.CodeOf(err) != tt.code || err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("%s: code %d, %v", verb, api.CodeOf(err), err)
					}
				}
				wantNotes(t, w)
			})
		})
	}
}

// A caller that names no pod, by hand or from another runtime, is none of the
// cluster's.
func TestCallerWithoutPodIsServed(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.cluster.away = true
		e, _ := w.start()
		r := request("c1", "c1")
		r.Pod = Pod{}
		r.DHCP = json.RawMessage(`{"hostname":""}`)
		if _, err := e.Attach(t.Context(), r); err != nil {
			t.Error(err)
		}
	})
}

func TestAddressIsAskedForFirst(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.audience = &audience{}
		w.space("c1", 1)
		e, _ := w.start()
		r := request("c1", "c1")
		r.DHCP = json.RawMessage(`{"address":"10.77.0.60"}`)
		got, err := e.Attach(t.Context(), r)
		if err != nil || got.Address != "10.77.0.50/24" { // this server grants no wishes
			t.Errorf("Attach = %+v, %v", got, err)
		}
		if w.server.wish != netip.MustParseAddr("10.77.0.60") {
			t.Errorf("option 50 of the DISCOVER: %s", w.server.wish)
		}
		notes := w.since()
		if notes[0] != "DISCOVER to all" {
			t.Errorf("begins with %q", notes[0])
		}
		want := []string{"address 10.77.0.50/24 from DHCP server 10.77.0.1, and not 10.77.0.60, which was asked for"}
		if diff := cmp.Diff(want, w.audience.eventsOf(AddressLeased)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestBroadcastOnOVN(t *testing.T) {
	for _, ovn := range []bool{false, true} {
		simulate(t, func(t *testing.T, w *world) {
			w.space("c1", 1)
			w.cluster.ovn = ovn
			e, _ := w.start()
			mustAttach(t, e, "c1")
			if w.server.sawBroadcast != ovn {
				t.Errorf("OVN %t, BROADCAST flag %t", ovn, w.server.sawBroadcast)
			}
		})
	}
}

// The network's own limit counts where the plugin could not know it.
func TestTimeoutOfTheEffectiveSettings(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.space("c1", 1)
		w.server.silent = true
		w.cluster.dhcp = json.RawMessage(`{"timeout":"10s"}`)
		w.audience = &audience{}
		e, _ := w.start()
		begin := time.Now()
		_, err := e.Attach(t.Context(), request("c1", "c1"))
		if took := time.Since(begin); took != 10*time.Second || err == nil {
			t.Errorf("took %s: %v", took, err)
		}
		if diff := cmp.Diff([]string{"NoDHCPServer c1"}, w.audience.since()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		nothingLeft(t, w)
	})
}

func TestLimited(t *testing.T) {
	want := errors.New("OVN's database is away")
	for _, limited := range []func() error{nil, func() error { return want }} {
		e := New(Config{Metrics: NewMetrics(nil), Limited: limited})
		if err := e.Limited(); (err == nil) != (limited == nil) || err != nil && !errors.Is(err, want) {
			t.Errorf("Limited() = %v", err)
		}
	}
}
