package leaseobjects

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// A lease is written when it is got, and not again in five hundred renewals.
func TestU13RenewalsWriteNothing(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		l.Restored()
		begin := time.Now().Truncate(time.Second)
		o := leased("c1", "web-0", "uid-0", begin)
		l.Observe(o)
		l.wantWrites("PATCH " + web0)
		got, _ := l.object("web-0", "uid-0")
		want := Status{Pod: "web-0", Interface: "net1", Network: "shop/lan", Node: "worker-1", MACAddress: "02:00:00:00:00:01",
			Address: "10.77.0.50/24", Server: "10.77.0.1", State: Bound, LeaseTime: "1h0m0s", Since: metav1.NewTime(begin)}
		if diff := cmp.Diff(want, got.Status); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "uid-0"}}, got.OwnerReferences); diff != "" {
			t.Errorf("owner (-want +got):\n%s", diff)
		}
		for i := range 500 {
			time.Sleep(30 * time.Minute)
			o.State, o.Granted = dhcp4.Renewing, time.Now()
			l.Observe(o)
			if i%2 == 0 { // its server was a little late
				o.State = dhcp4.Rebinding
				l.Observe(o)
				time.Sleep(silence / 2)
			}
			o.State, o.Granted = dhcp4.Bound, time.Now()
			o.Lease.Start, o.Lease.Lifetime = time.Now(), time.Duration(i)*time.Second // what is left, some servers say
			l.Observe(o)
		}
		time.Sleep(silence)
		l.wantWrites()
	})
}

// What is new is written once, and SINCE follows the address alone.
func TestU13Changes(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		l.Restored()
		begin := time.Now().Truncate(time.Second)
		o := leased("c1", "web-0", "uid-0", begin)
		l.Observe(o)
		l.wantWrites("PATCH " + web0)
		check := func(state State, address string, since time.Time) {
			t.Helper()
			got, _ := l.object("web-0", "uid-0")
			if s := got.Status; s.State != state || s.Address != address || !s.Since.Time.Equal(since) {
				t.Errorf("%s %s since %s, want %s %s since %s", s.State, s.Address, s.Since, state, address, since)
			}
		}
		time.Sleep(time.Hour)
		o.State, o.Granted = dhcp4.Rebinding, time.Now()
		l.Observe(o)
		time.Sleep(silence)
		l.wantWrites("PATCH " + web0)
		check(Rebinding, "10.77.0.50/24", begin)

		o.State, o.Lease.Server = dhcp4.Bound, netip.MustParseAddr("10.77.0.2")
		l.Observe(o)
		l.wantWrites("PATCH " + web0)
		check(Bound, "10.77.0.50/24", begin)

		lost := time.Now().Truncate(time.Second)
		l.Observe(phase(o, engine.Seeking))
		l.wantWrites("PATCH " + web0)
		check(Lost, "", lost)

		o.Lease.Addr = netip.MustParsePrefix("10.77.0.51/24")
		o.Granted = time.Now().Truncate(time.Second)
		l.Observe(o)
		l.wantWrites("PATCH " + web0)
		check(Bound, "10.77.0.51/24", o.Granted)
	})
}

// The object of a pod that is deleted is left to Kubernetes; of one that goes on it is
// removed, unless the next sandbox is there before.
func TestEndOfAnAttachment(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		l.Restored()
		one, two := leased("c1", "web-0", "uid-0", time.Now()), leased("c2", "web-0", "uid-0", time.Now())
		l.Observe(one)
		l.wantWrites("PATCH " + web0)
		l.Observe(phase(one, engine.Superseded))
		l.Observe(two)
		l.Observe(phase(one, "")) // its DEL comes late
		time.Sleep(linger)
		l.wantWrites()

		l.Observe(phase(two, ""))
		l.wantWrites()
		l.api.change(func() { l.drop(web0) }) // by the garbage collector
		time.Sleep(linger)
		l.wantWrites()

		l.Observe(two)
		l.wantWrites("PATCH " + web0)
		l.Observe(phase(two, engine.Releasing))
		time.Sleep(linger)
		l.wantWrites("DELETE " + web0)
	})
}

// After a restart objects are compared: what is right stays as it is, what is not of
// this node's attachments goes, and neither before all attachments are known.
func TestRestart(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		stop := l.start()
		l.Restored()
		begin := time.Now().Truncate(time.Second)
		l.pod("web-1", "uid-1")
		l.pod("web-2", "uid-2")
		var all []engine.Observation
		for i := range 3 {
			all = append(all, leased(fmt.Sprint("c", i), fmt.Sprint("web-", i), fmt.Sprint("uid-", i), begin))
			l.Observe(all[i])
		}
		time.Sleep(time.Second)
		synctest.Wait()
		l.since()
		stop()

		time.Sleep(time.Hour)
		l.start()
		l.Observe(leased("c0", "web-0", "uid-0", time.Now()))
		l.wantWrites()
		changed := leased("c1", "web-1", "uid-1", time.Now())
		changed.Lease.Server = netip.MustParseAddr("10.77.0.2")
		l.Observe(changed)
		time.Sleep(time.Hour) // the records take their time
		l.wantWrites()
		l.Restored()
		time.Sleep(time.Second)
		synctest.Wait()
		got := map[string]bool{}
		for _, r := range l.since() {
			got[r] = true
		}
		want := map[string]bool{"PATCH shop/" + nameOf("web-1", "uid-1", "net1"): true, "DELETE shop/" + nameOf("web-2", "uid-2", "net1"): true}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
		if o, _ := l.object("web-1", "uid-1"); !o.Status.Since.Time.Equal(begin) {
			t.Errorf("since %s, want %s", o.Status.Since, begin)
		}
	})
}

// Without the kind all works, with one line in the log; when it comes, and when it
// comes again, all is written.
func TestU07KindComesLate(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.code = http.StatusNotFound
		l.start()
		l.Restored()
		o := leased("c1", "web-0", "uid-0", time.Now())
		l.Observe(o)
		time.Sleep(24 * time.Hour)
		l.wantWrites()
		if n := l.logged(); n != 1 {
			t.Errorf("%d lines:\n%s", n, l.log.String())
		}
		l.api.change(func() { l.code = 0 })
		time.Sleep(time.Minute)
		l.wantWrites("PATCH " + web0)

		l.away()
		time.Sleep(time.Hour)
		o.Lease.Server = netip.MustParseAddr("10.77.0.2")
		l.Observe(o)
		time.Sleep(time.Hour)
		if n := l.logged(); n > 4 { // there is none, there is one, there is none, perhaps a write that failed
			t.Errorf("%d lines:\n%s", n, l.log.String())
		}
		l.since()
		l.api.change(func() { l.code = 0 })
		time.Sleep(time.Minute)
		time.Sleep(time.Second)
		synctest.Wait()
		// Twice, when it is written before the cache has noticed that it was away.
		if got := slices.Compact(l.since()); !slices.Equal(got, []string{"PATCH " + web0}) {
			t.Errorf("written: %q", got)
		}
	})
}

// What others change is put back, what they add is left alone.
func TestOthersChange(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		l.Restored()
		l.Observe(leased("c1", "web-0", "uid-0", time.Now()))
		l.wantWrites("PATCH " + web0)
		l.api.change(func() { l.drop(web0) })
		l.wantWrites("PATCH " + web0)
		edit := func(f func(*Lease)) {
			o, _ := l.object("web-0", "uid-0")
			c := o.DeepCopyObject().(*Lease)
			f(c)
			l.api.change(func() { l.put(c) })
		}
		edit(func(o *Lease) { o.Status.Address = "10.0.0.1/8" })
		l.wantWrites("PATCH " + web0)
		edit(func(o *Lease) { o.Labels["team"] = "shop" })
		l.wantWrites()
	})
}

// A pod that is not known yet is waited for; one of another UID is not the owner.
func TestOwnerMustBeKnown(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		l.Restored()
		l.Observe(leased("c1", "web-1", "uid-1", time.Now()))
		l.pod("web-1", "uid-0")
		time.Sleep(time.Minute)
		l.wantWrites()
		l.pod("web-1", "uid-1")
		time.Sleep(time.Minute + 30*time.Second)
		l.wantWrites("PATCH shop/" + nameOf("web-1", "uid-1", "net1"))
		if n := l.logged(); n != 0 {
			t.Errorf("%d lines:\n%s", n, l.log.String())
		}
	})
}

// An API that hangs or refuses is tried again, slowly, and said once; nobody who
// observes waits for it.
func TestTrouble(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.hangC = make(chan struct{})
		l.start()
		l.Restored()
		begin := time.Now()
		o := leased("c1", "web-0", "uid-0", begin)
		for range 1000 {
			l.Observe(phase(o, engine.Seeking))
			l.Observe(o)
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("Observe waited %s", took)
		}
		time.Sleep(time.Minute)
		close(l.hangC)
		l.api.change(func() { l.writes = http.StatusForbidden; l.requests = nil })
		time.Sleep(time.Hour)
		if n := len(l.since()); n < 12 || n > 30 {
			t.Errorf("%d tries in an hour", n)
		}
		if n := l.logged(); n != 1 {
			t.Errorf("%d lines:\n%s", n, l.log.String())
		}
		l.api.change(func() { l.writes = 0 })
		time.Sleep(lastRetry)
		if got, there := l.object("web-0", "uid-0"); !there || got.Status.State != Bound {
			t.Errorf("%+v", got)
		}
	})
}

// However many there are, a node writes five a second.
func TestWritesAreLimited(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		l.Restored()
		for i := range 500 {
			name, uid := fmt.Sprint("pod-", i), fmt.Sprint("uid-", i)
			l.pod(name, uid)
			l.Observe(leased(fmt.Sprint("c", i), name, uid, time.Now()))
		}
		time.Sleep(20 * time.Second)
		if n := len(l.since()); n < 90 || n > 20*requestsPerSecond+requestsAtOnce {
			t.Errorf("%d writes in 20 s", n)
		}
		time.Sleep(80 * time.Second)
		synctest.Wait()
		if n := len(l.objects); n != 500 {
			t.Errorf("%d objects", n)
		}
	})
}

// Only this node's objects are asked for.
func TestOwnObjectsOnly(t *testing.T) {
	simulate(t, func(t *testing.T, l *lab) {
		l.start()
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"GET dhcp-meta.io/node=worker-1"}, l.requests); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
