package delegate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

const (
	ovnSandbox = "0123456789abcdef"
	ovnResult  = `{"cniVersion":"1.0.0","interfaces":[{"name":"0123456789abcde_1","mac":"0a:58:00:00:00:02"},{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}],"dns":{}}`
	ovnKeys    = `"plugins":[{"type":"ovn-k8s-cni-overlay","topology":"localnet","netAttachDefName":"prod/localnet-77"}]`
)

// newOVN is a rig whose delegate is that of OVN-Kubernetes, with both keys.
func newOVN(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.args.ContainerID = ovnSandbox
	r.conf("1.0.0", ovnKeys)
	r.exec.on["ADD"] = func(context.Context, run) (string, error) { return ovnResult, nil }
	r.start()
	return r
}

// mustRemark runs a verb that succeeds with a word on standard error.
func (r *rig) mustRemark(verb func(context.Context) error, want string) {
	r.t.Helper()
	if err := verb(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	if got := strings.Join(r.plugin.remarks, "; "); !strings.Contains(got, want) {
		r.t.Errorf("remarks %q, want %q", got, want)
	}
	r.plugin.remarks = nil
}

func (r *rig) del(ctx context.Context) error { return r.plugin.Del(ctx, r.args) }

// What the real one does at a DEL without the interface: it takes the pod's first
// interface for the second, and deletes that. So such a DEL must never reach it.
func TestOVNDelTraps(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*rig)
		want  string // remark
	}{
		{"interface gone", func(r *rig) { r.exec.sandbox.there = false }, "interface net1 is gone"},
		{"namespace gone", func(r *rig) { r.exec.sandbox = seen{} }, "network namespace /run/netns/a is gone"},
		{"no namespace named", func(r *rig) { r.args.Netns = "" }, "the network namespace is gone"},
		{"another namespace at the path", func(r *rig) { r.exec.sandbox.cookie = 2 }, "another network namespace stands at /run/netns/a now"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newOVN(t)
			r.must(r.plugin.Add)
			r.journal.want(t, "engine prepare", "delegate ADD", "engine attach")
			tt.spoil(r)
			r.mustRemark(r.del, tt.want)
			r.journal.want(t, "engine detach") // and no DEL of the delegate
			r.nothingLeft()
			// It does not come to life again: the interface of another sandbox is
			// not this one's.
			r.exec.sandbox = seen{cookie: 1, there: true}
			r.args.Netns = "/run/netns/a"
			r.must(r.plugin.Del)
			r.journal.want(t, "engine detach")
		})
	}
}

func TestOVNDelRunsOnce(t *testing.T) {
	r := newOVN(t)
	r.must(r.plugin.Add)
	for range 3 {
		r.must(r.plugin.Del)
	}
	if n := r.exec.count("DEL"); n != 1 {
		t.Errorf("the delegate's DEL ran %d times", n)
	}
	r.nothingLeft()
}

// What cannot be looked at may be there: the runtime asks again.
func TestOVNDelWhenNobodyCanLook(t *testing.T) {
	r := newOVN(t)
	r.must(r.plugin.Add)
	r.plugin.Look = func(string, string) (seen, error) { return seen{}, errors.New("too many open files") }
	if got := r.mustFail(r.plugin.Del, api.CodeInternal); got != "too many open files" {
		t.Errorf("error %q", got)
	}
	r.plugin.Look = r.exec.look
	r.must(r.plugin.Del)
	if n := r.exec.count("DEL"); n != 1 {
		t.Errorf("the delegate's DEL ran %d times", n)
	}
}

// A failed ADD of the real one may leave the interface, or not have made it yet.
func TestP26OVNDelAfterItsFailedAdd(t *testing.T) {
	for _, left := range []bool{false, true} {
		r := newOVN(t)
		r.exec.on["ADD"] = func(context.Context, run) (string, error) {
			r.exec.setThere(left)
			return "", &types.Error{Code: 999, Msg: "timed out waiting for ovn-installed"}
		}
		r.mustFail(r.plugin.Add, 999)
		want := []string{"engine prepare", "delegate ADD"}
		if left {
			want = append(want, "delegate DEL")
		}
		r.journal.want(t, want...)
		r.plugin.remarks = nil
		for range 3 { // Multus' own DEL, and those of the runtime
			r.must(r.plugin.Del)
			r.journal.want(t, "engine detach")
		}
		r.nothingLeft()
	}
}

// After the failure of something else the interface is there, and its DEL runs once.
func TestOVNDelAfterNoAddress(t *testing.T) {
	r := newOVN(t)
	r.engine.on["attach"] = func(context.Context) error { return api.WithCode(api.CodeTryAgain, errors.New("no server answered")) }
	r.mustFail(r.plugin.Add, api.CodeTryAgain)
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL")
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach")
}

// The real one's DEL fails for ever once the pod's object is gone.
func TestOVNDelOfAPodThatIsGone(t *testing.T) {
	r := newOVN(t)
	r.must(r.plugin.Add)
	r.exec.on["DEL"] = func(context.Context, run) (string, error) {
		return "", &types.Error{Code: 999, Msg: "CNI request failed with status 400: 'failed to find NAD key for network localnet-77 for pod / with ifName net1'"}
	}
	r.mustRemark(r.del, "the pod is gone")
	r.nothingLeft()
	// Any other refusal is one: its server may be starting again.
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine detach", "delegate DEL")
	r.must(r.plugin.Add)
	r.exec.on["DEL"] = func(context.Context, run) (string, error) {
		return "", &types.Error{Code: 999, Msg: "dial unix ovn-cni-server.sock: connection refused"}
	}
	r.mustFail(r.plugin.Del, 999)
	delete(r.exec.on, "DEL")
	r.must(r.plugin.Del)
	if n := r.exec.count("DEL"); n != 3 {
		t.Errorf("the delegate's DEL ran %d times", n)
	}
}

// A device on vfio-pci is in no namespace: the record decides, once.
func TestOVNDelOfAVFIODevice(t *testing.T) {
	const device = "0000:03:02.1"
	setup := func(t *testing.T, driver string) *rig {
		r := newOVN(t)
		r.conf("1.0.0", ovnKeys, `"deviceID":"`+device+`"`)
		r.exec.on["ADD"] = func(context.Context, run) (string, error) {
			return `{"cniVersion":"1.0.0","interfaces":[{"name":"eth4_1","mac":"0a:58:00:00:00:02"},{"name":"net1","mac":"0a:58:0a:4d:00:09","sandbox":"/run/netns/a"}]}`, nil
		}
		dir := filepath.Join(r.plugin.SysFS, "bus/pci/devices", device)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../../bus/pci/drivers/"+driver, filepath.Join(dir, "driver")); err != nil {
			t.Fatal(err)
		}
		r.must(r.plugin.Add)
		r.exec.sandbox = seen{cookie: 1} // it never was there
		r.journal.want(t, "engine prepare", "delegate ADD", "engine attach")
		return r
	}
	t.Run("OK once", func(t *testing.T) {
		r := setup(t, "vfio-pci")
		if got := r.engine.requests[1].DeviceID; got != device {
			t.Errorf("the engine was told of device %q", got)
		}
		r.args.Netns = ""
		r.must(r.plugin.Del)
		r.journal.want(t, "engine detach", "delegate DEL")
		r.must(r.plugin.Del)
		r.journal.want(t, "engine detach")
		r.nothingLeft()
	})
	t.Run("OK once, though it failed", func(t *testing.T) {
		r := setup(t, "vfio-pci")
		r.exec.on["DEL"] = func(context.Context, run) (string, error) { return "", errors.New("no representor") }
		r.mustFail(r.plugin.Del, api.CodeInternal)
		r.mustRemark(r.del, "it has run for this device")
		r.journal.want(t, "engine detach", "delegate DEL", "engine detach")
		r.nothingLeft()
	})
	t.Run("OK a device with a kernel driver is an interface", func(t *testing.T) {
		r := setup(t, "mlx5_core")
		r.mustRemark(r.del, "interface net1 is gone")
		r.journal.want(t, "engine detach")
	})
}

// A network that was marked after its pods had started: the ADD passed us by, and
// the interface tells whether a DEL has.
func TestDelOfAnOlderAttachment(t *testing.T) {
	setup := func(t *testing.T) *rig {
		r := newOVN(t)
		wrap, real := filepath.Join(r.stateDir, "wrap"), filepath.Join(r.stateDir, "real")
		for _, dir := range []string{wrap, real} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r.plugin.Name, r.plugin.Dir, r.args.Path = ovnPlugin, wrap, wrap+":"+real
		r.plugin.Environ = append(r.plugin.Environ, "DHCP_ENGINE_SOCKET="+r.socket, "DHCP_ENGINE_STATE_DIR="+r.stateDir)
		r.args.StdinData = []byte(`{"cniVersion":"1.0.0","name":"localnet-77","type":"ovn-k8s-cni-overlay","netAttachDefName":"prod/localnet-77"}`)
		return r
	}
	t.Run("OK its interface is there", func(t *testing.T) {
		r := setup(t)
		r.exec.sandbox.there = true
		for range 3 {
			r.must(r.plugin.Del)
		}
		if n := r.exec.count("DEL"); n != 1 {
			t.Errorf("the delegate's DEL ran %d times", n)
		}
		r.nothingLeft()
	})
	t.Run("OK another sandbox has the path now", func(t *testing.T) {
		r := setup(t)
		r.must(r.plugin.Add)
		r.journal.want(t, "engine prepare", "delegate ADD", "engine attach")
		r.args.ContainerID = "fedcba9876543210"
		r.must(r.plugin.Del)
		r.journal.want(t, "engine detach")
	})
	t.Run("OK its interface is gone", func(t *testing.T) {
		r := setup(t)
		r.must(r.plugin.Del)
		r.journal.want(t, "engine detach")
		r.nothingLeft()
	})
}

// OVN-Kubernetes' server takes the first 15 characters of the id, and crashes.
func TestOVNShortSandboxID(t *testing.T) {
	r := newOVN(t)
	r.args.ContainerID = "0123456789abcd"
	if got := r.mustFail(r.plugin.Add, api.CodeEnv); !strings.Contains(got, "15 characters") {
		t.Errorf("error %q", got)
	}
	r.journal.want(t)
	r.nothingLeft()
	r.args.ContainerID += "e"
	r.must(r.plugin.Add)
}

// A superseded sandbox has its delegate's DEL once, by its own entry; whose the lease
// is the engine knows.
func TestOVNDelOfAnOlderSandbox(t *testing.T) {
	r := newOVN(t)
	r.must(r.plugin.Add)
	older := *r.args
	r.args.ContainerID, r.args.Netns = "fedcba9876543210", "/run/netns/b"
	r.must(r.plugin.Add)
	r.journal.want(t, "engine prepare", "delegate ADD", "engine attach", "engine prepare", "delegate ADD", "engine attach")
	newer := r.args
	r.args = &older
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach", "delegate DEL")
	r.must(r.plugin.Del)
	r.journal.want(t, "engine detach")
	if diff := cmp.Diff([]string{newer.ContainerID + ":net1.json"}, r.ledgerFiles()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}
