package delegate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestCheck(t *testing.T) {
	const prev = `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.77.0.50/24"}]}`
	const delegate = `"delegate":{"type":"macvlan"}`
	tests := []struct {
		name  string
		conf  []string
		spoil func(*rig)
		code  uint
		want  string // error; empty: none
		calls []string
	}{
		{name: "OK", conf: []string{delegate, prev}, calls: []string{"delegate CHECK", "engine check"}},
		{name: "OK chained", conf: []string{prev}, calls: []string{"engine check"}},
		{name: "bad no prevResult", conf: []string{delegate}, code: api.CodeConfig, want: "prevResult: is missing, though CHECK needs it"},
		{name: "bad prevResult", conf: []string{delegate, `"prevResult":{"ips":7}`}, code: api.CodeConfig, want: "prevResult: json: cannot unmarshal number"},
		{
			name: "bad delegate's word", conf: []string{delegate, prev}, code: 104, want: "interface is down", calls: []string{"delegate CHECK"},
			spoil: func(r *rig) {
				r.exec.on["CHECK"] = func(context.Context, run) (string, error) {
					return "", &types.Error{Code: 104, Msg: "interface is down"}
				}
			},
		},
		{
			name: "bad engine's word", conf: []string{delegate, prev}, code: api.CodeInternal, want: "address 10.77.0.50/24 is missing from net1", calls: []string{"delegate CHECK", "engine check"},
			spoil: func(r *rig) {
				r.engine.on["check"] = func(context.Context) error { return errors.New("address 10.77.0.50/24 is missing from net1") }
			},
		},
		{
			name: "bad address that changed since", conf: []string{delegate, prev}, code: api.CodeInternal,
			want:  "the lease is 10.77.0.51/24 now, which is not in the result of the ADD: the server gave another address since",
			spoil: func(r *rig) { r.engine.lease.Address = "10.77.0.51/24" }, calls: []string{"delegate CHECK", "engine check"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			if tt.spoil != nil {
				tt.spoil(r)
			}
			r.conf("1.0.0", tt.conf...)
			if tt.want == "" {
				r.must(r.plugin.Check)
			} else if got := r.mustFail(r.plugin.Check, tt.code); !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			r.journal.want(t, tt.calls...)
			if r.stdout.Len() != 0 {
				t.Errorf("printed %s", r.stdout.String())
			}
		})
	}
}

func TestB93StatusAndGC(t *testing.T) {
	t.Run("OK STATUS", func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.must(r.plugin.Status)
		r.journal.want(t, "delegate STATUS", "engine ready")
	})
	t.Run("OK STATUS chained", func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.conf("1.1.0")
		r.must(r.plugin.Status)
		r.journal.want(t, "engine ready")
	})
	t.Run("bad STATUS without an engine", func(t *testing.T) {
		r := newRig(t)
		if got := r.mustFail(r.plugin.Status, 50); !strings.Contains(got, r.socket) {
			t.Errorf("error %q", got)
		}
	})
	t.Run("bad STATUS with an engine that is not ready", func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.engine.on["ready"] = func(context.Context) error { return errors.New("state folder is full") }
		if got := r.mustFail(r.plugin.Status, 50); got != "state folder is full" {
			t.Errorf("error %q", got)
		}
	})
	t.Run("bad STATUS with an engine that is limited", func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.engine.on["limited"] = func(context.Context) error { return errors.New("the API server is away") }
		if got := r.mustFail(r.plugin.Status, api.CodeLimited); got != "the API server is away" {
			t.Errorf("error %q", got)
		}
	})
	t.Run("bad STATUS of the delegate", func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.exec.on["STATUS"] = func(context.Context, run) (string, error) { return "", &types.Error{Code: 51, Msg: "limited"} }
		r.mustFail(r.plugin.Status, 51)
		r.journal.want(t, "delegate STATUS")
	})
	t.Run("bad GC without an engine", func(t *testing.T) {
		r := newRig(t)
		r.conf("1.1.0", `"delegate":{"type":"macvlan"}`, `"cni.dev/valid-attachments":[]`)
		r.mustFail(r.plugin.GC, api.CodeTryAgain)
		r.journal.want(t, "delegate GC")
	})
	t.Run("bad GC without a list", func(t *testing.T) {
		r := newRig(t)
		r.start()
		if got := r.mustFail(r.plugin.GC, api.CodeConfig); got != "cni.dev/valid-attachments: is missing" {
			t.Errorf("error %q", got)
		}
		r.journal.want(t)
	})
}

func TestGC(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*rig)
		code  uint
		want  string   // error; empty: none
		kept  []string // of the ledger
	}{
		{name: "OK", kept: []string{"alive:net1.json", "dead:net3.json"}},
		{
			name: "bad delegate: the engine has its turn, the ledger waits", code: 7, want: "no such verb",
			kept: []string{"alive:net1.json", "dead:net1.json", "dead:net3.json"},
			spoil: func(r *rig) {
				r.exec.on["GC"] = func(context.Context, run) (string, error) { return "", &types.Error{Code: 7, Msg: "no such verb"} }
			},
		},
		{
			name: "bad engine", code: 11, want: "later", kept: []string{"alive:net1.json", "dead:net3.json"},
			spoil: func(r *rig) {
				r.engine.on["sweep"] = func(context.Context) error { return &types.Error{Code: 11, Msg: "later"} }
			},
		},
		{
			name: "bad both", code: 7, want: "no such verb; later", kept: []string{"alive:net1.json", "dead:net1.json", "dead:net3.json"},
			spoil: func(r *rig) {
				r.exec.on["GC"] = func(context.Context, run) (string, error) { return "", &types.Error{Code: 7, Msg: "no such verb"} }
				r.engine.on["sweep"] = func(context.Context) error { return &types.Error{Code: 11, Msg: "later"} }
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			l := openLedger(r.stateDir)
			if err := l.create(); err != nil {
				t.Fatal(err)
			}
			for id, network := range map[string]string{"alive:net1": "vlan77", "dead:net1": "vlan77", "dead:net3": "vlan78"} {
				id, _ := api.ParseAttachmentID(id)
				if err := l.write(id, entry{Network: network}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.spoil != nil {
				tt.spoil(r)
			}
			const valid = `[{"containerID":"alive","ifname":"net1"}]`
			r.conf("1.1.0", `"delegate":{"type":"macvlan"}`, `"cni.dev/valid-attachments":`+valid)
			if tt.want == "" {
				r.must(r.plugin.GC)
			} else if got := r.mustFail(r.plugin.GC, tt.code); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			r.journal.want(t, "delegate GC", "engine sweep")
			if got := string(r.exec.runs[0].stdin[validKey]); got != valid {
				t.Errorf("the delegate got %s, want %s", got, valid)
			}
			want := []api.Sweep{{Network: "vlan77", Valid: []api.AttachmentID{{ContainerID: "alive", IfName: "net1"}}}}
			if diff := cmp.Diff(want, r.engine.sweeps); diff != "" {
				t.Errorf("sweep (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.kept, r.ledgerFiles()); diff != "" {
				t.Errorf("ledger (-want +got):\n%s", diff)
			}
		})
	}
}
