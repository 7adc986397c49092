package handover

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/vm/guest"
)

// The engine is killed after every single write to sysfs: the kernel has carried it
// out, the engine has not learned of it. The next engine finds the device wherever it
// is then, and it is back on vfio-pci before that engine is ready.
func TestK72AfterSIGKILL(t *testing.T) {
	all := stepsOfAnAdd(t)
	for _, word := range []string{"unbind", "drivers_probe", "driver_override"} {
		if !slices.ContainsFunc(all, func(s guest.Step) bool { return strings.HasSuffix(s.Path, "/"+word) }) {
			t.Fatalf("no write to %s among %v", word, all)
		}
	}
	for n, step := range all {
		t.Run(fmt.Sprintf("%02d %s", n, step.Path[strings.LastIndex(step.Path, "/")+1:]), func(t *testing.T) {
			killAfter(t, n, step)
		})
	}
	stepsOfAnAdd(t) // it can be borrowed again
}

// stepsOfAnAdd are the writes to sysfs of an ADD that nothing disturbs.
func stepsOfAnAdd(t *testing.T) (steps []guest.Step) {
	t.Run("undisturbed", func(t *testing.T) {
		vf := guest.VF(t, 0)
		l := guest.NewLabWithout(t)
		l.Server = guest.StartServer(t)
		tr := l.Trace(t)
		p := newPod(t, l, vf, discover)
		mustHave(t, l, p, l.Node.Add(t, p.call), 0)
		steps = writes(tr)
		l.Node.Del(t, p.call)
		if after := writes(tr); len(after) != len(steps) {
			t.Errorf("the DEL has written to sysfs: %v", after[len(steps):])
		}
	})
	t.Logf("writes: %v", steps)
	return steps
}

// killAfter kills an engine at the n-th write of an ADD.
func killAfter(t *testing.T, n int, want guest.Step) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	tr := l.Trace(t)
	tr.Decide(func(s guest.Step) guest.Verdict {
		if s.Sysfs() {
			n--
		}
		return guest.Verdict{Kill: n < 0, Done: true}
	})
	p := newPod(t, l, vf, discover)
	added := make(chan rig.Outcome, 1)
	go func() {
		o, _ := l.Node.CNI("ADD", p.call) // what it says is looked at below
		added <- o
	}()
	select {
	case <-tr.Killed():
	case o := <-added:
		t.Fatalf("the ADD ended before the engine was killed: %v; steps %v", o.Err, tr.Steps())
	}
	<-tr.Ended()
	l.Engine.AwaitExit(t)
	if last := writes(tr)[len(writes(tr))-1]; last.Path != want.Path || last.Value != want.Value {
		t.Errorf("killed at %v, want %v", last, want)
	}
	t.Logf("killed after %v: %v", want, vf)
	l.Engine.Start(t)
	vf.MustBeBack(t)
	<-added // it may have succeeded by the new engine: the DEL comes in any case
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
	vf.MustBeBack(t)
}

// A RELEASE is sent only when something fails after the ACK: here the record of the
// lease cannot be written.
func TestReleaseAfterAFailureOnly(t *testing.T) {
	vf := guest.VF(t, 0)
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	tr := l.Trace(t)
	acked := func() bool { return l.Capture.Count(0, isAck) > 0 }
	tr.Decide(func(s guest.Step) guest.Verdict {
		if s.Call == "rename" && strings.Contains(s.Path, "/attachments/") && acked() {
			return guest.Verdict{Err: unix.ENOSPC}
		}
		return guest.Verdict{}
	})
	p := newPod(t, l, vf, discover)
	o, err := l.Node.CNI("ADD", p.call)
	if err != nil {
		t.Fatal(err)
	}
	if o.Err == nil {
		t.Fatalf("the ADD succeeded without a record: %s", o.Stdout)
	}
	t.Logf("refused: %v", o.Err)
	vf.MustBeBack(t)
	tr.Decide(nil)
	l.Capture.Await(t, "RELEASE", 0, rig.Patience, isRelease)
	l.Server.AwaitHeld(t, "an empty table", rig.Nothing)
	l.Node.Del(t, p.call)
	l.Engine.AwaitNoRecords(t)
}

// The kernel refuses one write after another, once each, as hardware that fails does:
// whatever the ADD says, the device is back on vfio-pci, at once or when the engine has
// tried again, and can be borrowed.
func TestK72AfterAFailingWrite(t *testing.T) {
	all := stepsOfAnAdd(t)
	l := guest.NewLabWithout(t)
	l.Server = guest.StartServer(t)
	tr := l.Trace(t)
	for n, step := range all {
		t.Run(fmt.Sprintf("%02d %s", n, step.Path[strings.LastIndex(step.Path, "/")+1:]), func(t *testing.T) {
			vf := guest.VF(t, 0)
			left := n
			tr.Decide(func(s guest.Step) guest.Verdict {
				if !s.Sysfs() {
					return guest.Verdict{}
				}
				if left--; left == -1 {
					return guest.Verdict{Err: unix.EIO}
				}
				return guest.Verdict{}
			})
			p := newPod(t, l, vf, discover)
			o, err := l.Node.CNI("ADD", p.call)
			if err != nil {
				t.Fatal(err)
			}
			if t.Logf("refused %v: %v; %v", step, o.Err, vf); left >= 0 {
				t.Errorf("the ADD has not come to the write: %v", writes(tr))
			}
			guest.Await(t, "the device is back", func() bool { return vf.Driver() == "vfio-pci" && vf.Override() == "" })
			tr.Decide(nil)
			l.Node.Del(t, p.call)
			l.Engine.AwaitNoRecords(t)
		})
	}
	again := newPod(t, l, guest.VF(t, 0), discover)
	mustHave(t, l, again, l.Node.Add(t, again.call), 0)
	l.Node.Del(t, again.call)
}
