package publish

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

func attachment(container, pod, nad string) engine.Attachment {
	return engine.Attachment{
		AttachmentID: engine.AttachmentID{ContainerID: container, IfName: "net1"},
		Network:      "lan", NAD: nad,
		Pod: engine.Pod{Namespace: "default", Name: pod, UID: "uid-" + pod},
	}
}

func lease(container, pod, addr string) engine.Publication {
	return engine.Publication{Attachment: attachment(container, pod, "default/lan"), Addr: netip.MustParsePrefix(addr)}
}

// The newest sandbox of a pod owns what is published of its interface, and nothing
// that an older one says afterwards changes it.
func TestNewerSandboxOwnsTheSlot(t *testing.T) {
	var table Table
	older, newer := attachment("c1", "web", "default/lan"), attachment("c2", "web", "default/lan")
	if _, err := table.Publish(lease("c1", "web", "10.0.0.5/24")); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Reset(newer, engine.Container); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Publish(lease("c1", "web", "10.0.0.5/24")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("Publish of the older: %v", err)
	}
	if _, err := table.Reset(older, engine.Container); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("Reset of the older: %v", err)
	}
	if _, err := table.Publish(lease("c2", "web", "10.0.0.6/24")); err != nil {
		t.Fatal(err)
	}
	if _, owner := table.Withdraw(older); owner {
		t.Error("the older one could withdraw")
	}
	d, ok := table.Of(newer)
	if !ok || d.Lease == nil || d.Lease.Addr.String() != "10.0.0.6/24" {
		t.Errorf("published is %+v, owned %t", d.Lease, ok)
	}
	if _, ok := table.Of(older); ok {
		t.Error("the older one owns the slot")
	}

	// Also when the newer one has ended first.
	table.Forget(newer)
	if _, err := table.Publish(lease("c1", "web", "10.0.0.5/24")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("Publish of the older after the newer has ended: %v", err)
	}
	table.Forget(older)
	if n := len(table.places); n != 0 {
		t.Errorf("%d places are left", n)
	}
}

// Right after a restart, an older sandbox that nobody has told of yet does not take
// the slot from one whose ADD runs.
func TestOlderSandboxFromBeforeARestart(t *testing.T) {
	var table Table
	newer := attachment("c2", "web", "default/lan")
	if _, err := table.Reset(newer, engine.Container); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Publish(lease("c1", "web", "10.0.0.5/24")); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("the older one: %v", err)
	}
	if _, err := table.Publish(lease("c2", "web", "10.0.0.5/24")); err != nil {
		t.Errorf("the newer one: %v", err)
	}
	// Without any reset, all of them are from before the restart.
	for _, c := range []string{"c1", "c2"} {
		if _, err := table.Publish(lease(c, "db", "10.0.0.5/24")); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
}

// The DEL of an attachment that has not been published since a restart takes the
// slot only where it is nobody's.
func TestWithdrawRightAfterARestart(t *testing.T) {
	var table Table
	a := attachment("c1", "web", "default/lan")
	a.Wrapped = "ovn-k8s-cni-overlay"
	if d, owner := table.Withdraw(a); !owner || !d.Withdrawn || !d.OVN || d.Lease != nil {
		t.Errorf("owner %t, %+v", owner, d)
	}
	if _, err := table.Publish(lease("c2", "web", "10.0.0.5/24")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"c1", "c0"} {
		if _, owner := table.Withdraw(attachment(c, "web", "default/lan")); owner {
			t.Errorf("%s took the slot of c2", c)
		}
	}
}

// Slots are apart: by pod (a pod made again under its name is another one), by NAD
// and by interface.
func TestSlotsAreApart(t *testing.T) {
	var table Table
	third := attachment("c1", "web", "other/lan")
	third.IfName = "net3"
	for i, a := range []engine.Attachment{attachment("c1", "web", "default/lan"), attachment("c2", "db", "default/lan"), third} {
		if _, err := table.Reset(a, engine.Container); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	again := attachment("c3", "web", "default/lan")
	again.Pod.UID = "another"
	if _, err := table.Reset(again, engine.Container); err != nil {
		t.Error(err)
	}
	second := attachment("c1", "web", "default/lan")
	second.IfName = "net2"
	if _, err := table.Reset(second, engine.VM); err != nil {
		t.Error(err)
	}
	names := func(list []Desired) []string {
		var out []string
		for _, d := range list {
			out = append(out, d.Pod.UID+" "+d.NAD+" "+d.IfName+" "+d.Owner.ContainerID)
		}
		return out
	}
	want := []string{"uid-web default/lan net1 c1", "uid-web default/lan net2 c1", "uid-web other/lan net3 c1"}
	if diff := cmp.Diff(want, names(table.OfPod(engine.Pod{Namespace: "default", Name: "web", UID: "uid-web"}))); diff != "" {
		t.Errorf("of the pod (-want +got):\n%s", diff)
	}
	if got := names(table.OfPod(engine.Pod{Namespace: "default", Name: "web"})); len(got) != 4 {
		t.Errorf("of any pod of the name: %q", got)
	}
	if got := table.All(); len(got) != 5 {
		t.Errorf("%d slots", len(got))
	}
	if got := names(table.ForgetPod(again.Pod)); len(got) != 1 || len(table.All()) != 4 {
		t.Errorf("forgot %q", got)
	}
}

// An attachment whose NAD becomes known later has one slot all the same.
func TestNADThatBecomesKnown(t *testing.T) {
	var table Table
	before := attachment("c1", "web", "")
	if _, err := table.Reset(before, engine.Container); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Publish(lease("c1", "web", "10.0.0.5/24")); err != nil {
		t.Fatal(err)
	}
	if got := table.All(); len(got) != 1 || got[0].NAD != "default/lan" {
		t.Errorf("slots: %+v", got)
	}
	if d, owner := table.Withdraw(before); !owner || d.NAD != "default/lan" {
		t.Errorf("withdrawn: %t, %+v", owner, d)
	}
	table.Forget(before)
	if len(table.places) != 0 || len(table.owned) != 0 {
		t.Errorf("left: %v, %v", table.places, table.owned)
	}
}

// Without a NAD the network's name stands for it.
func TestSlotWithoutNAD(t *testing.T) {
	if got := SlotOf(attachment("c1", "web", "")).NAD; got != "lan" {
		t.Errorf("got %q", got)
	}
}

func TestRevisionTellsWhatIsStale(t *testing.T) {
	var table Table
	first, err := table.Publish(lease("c1", "web", "10.0.0.5/24"))
	if err != nil || !table.Current(first) {
		t.Fatalf("%v, current %t", err, table.Current(first))
	}
	second, err := table.Publish(lease("c1", "web", "10.0.0.6/24"))
	if err != nil || table.Current(first) || !table.Current(second) {
		t.Errorf("%v, first is current: %t", err, table.Current(first))
	}
	if d, owner := table.Withdraw(second.Owner); !owner || d.Lease != nil || table.Current(second) || !table.Current(d) {
		t.Errorf("owner %t, withdrawn %+v", owner, d)
	}
	table.Forget(second.Owner)
	if got := table.All(); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
}

// A pod whose sandbox crashes for ever does not fill the memory.
func TestSandboxesThatComeAndGo(t *testing.T) {
	var table Table
	for i := range 10 * maxPast {
		if _, err := table.Reset(attachment(fmt.Sprint("c", i), "web", "default/lan"), engine.Container); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(table.places[SlotOf(attachment("", "web", "default/lan"))].past); n != maxPast {
		t.Errorf("%d are remembered", n)
	}
}

func TestTableSideBySide(t *testing.T) {
	var table Table
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			pod := fmt.Sprint("web", i%2)
			for j := range 200 {
				p := lease(fmt.Sprint("c", i), pod, "10.0.0.5/24")
				_, err := table.Publish(p)
				if err != nil && !errors.Is(err, engine.ErrSuperseded) {
					t.Error(err)
				}
				table.OfPod(p.Pod)
				if j%3 == 0 {
					table.Withdraw(p.Attachment)
				}
			}
			table.Forget(attachment(fmt.Sprint("c", i), pod, "default/lan"))
		})
	}
	wg.Wait()
	if got := table.All(); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
}
