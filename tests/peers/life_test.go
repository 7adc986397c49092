package peers

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// What happens to a lease in real time. The two sides wait side by side; each has one
// pod.

// lent is how long leases are lent here: the least that dnsmasq does.
const lent = 2 * time.Minute

func lending(t1, t2 time.Duration) rig.ServerConfig {
	conf := roomy()
	conf.Lifetime, conf.T1, conf.T2 = lent, t1, t2
	return conf
}

// life is the pod of a side and its lease.
type life struct {
	form
	pod  *rig.Sandbox
	addr netip.Addr
	end  time.Time // of the first lease
}

func lives(t *testing.T, conf rig.ServerConfig) []*life {
	t.Helper()
	var list []*life
	for _, f := range newPair(t, 1, conf).forms(reference, engine) {
		pod := f.sandboxes(1)[0]
		addr, _, err := f.call("ADD", pod)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &life{f, pod, addr, time.Now().Add(lent)})
	}
	return list
}

// usable is the address that the pod can use now; none where the interface is down.
func (l *life) usable(t *testing.T) netip.Addr {
	t.Helper()
	ns, err := netns.GetFromPath(l.pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName("net1")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := h.AddrList(link, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	if len(addrs) == 0 || link.Attrs().RawFlags&unix.IFF_UP == 0 {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(addrs[0].IP)
	return addr.Unmap()
}

// lookEvery is how often the pods are looked at.
const lookEvery = 100 * time.Millisecond

// watch looks at all pods until each of the conditions has been true of each, and no
// longer than until. It returns when that was first, by condition and side; zero
// where it never was.
func watch(t *testing.T, list []*life, until time.Time, conditions ...func(*life) bool) []map[string]time.Time {
	t.Helper()
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	when := make([]map[string]time.Time, len(conditions))
	for i := range when {
		when[i] = map[string]time.Time{}
	}
	for open := 1; open > 0 && time.Now().Before(until); <-again.C {
		open = 0
		for i, is := range conditions {
			for _, l := range list {
				if _, ok := when[i][l.name]; ok {
					continue
				}
				if !is(l) {
					open++
					continue
				}
				when[i][l.name] = time.Now()
			}
		}
	}
	return when
}

// after is the figure of something that took the time from begin to when, and never
// happened within the time that it was waited for if when is zero.
func after(begin, when time.Time, waited time.Duration) figure {
	if when.IsZero() {
		return figure{Text: fmt.Sprintf("not within %.0f s", waited.Seconds()), Never: true}
	}
	s := when.Sub(begin).Seconds()
	if s <= 2*lookEvery.Seconds() {
		return figure{Text: "at once"}
	}
	return figure{Text: digits(s) + " s", Number: s}
}

// restart kills the daemon and starts it again, long before its lease is to be renewed.
func restart(t *testing.T, _ extent) []row {
	list := lives(t, lending(lent/4, lent*7/8))
	renewed := newRow("SIGKILL and start: renewals until the lease's end")
	held := newRow("... the lease at the server then")
	mark := map[string]int{}
	for _, l := range list {
		l.process().Kill(t)
		mark[l.name] = l.Capture.Len()
		l.start(t)
	}
	watch(t, list, list[1].end.Add(5*time.Second), func(*life) bool { return false })
	for _, l := range list {
		n := l.Capture.Count(mark[l.name], rig.Type(dhcpv4.MessageTypeRequest, nil))
		renewed.Figures[l.name] = more(n, 0)
		text := "none"
		if len(l.server.Held(t)) > 0 {
			text = "the pod's"
		}
		if l.usable(t) == l.addr {
			text += ", and the pod uses the address"
		}
		held.Figures[l.name] = figure{Text: text}
	}
	return []row{renewed, held}
}

// nak lets a server refuse the renewal: it has lent the address to somebody else
// since.
func nak(t *testing.T, _ extent) []row {
	list := lives(t, lending(lent/8, lent/2))
	begin := map[string]time.Time{}
	for _, l := range list {
		l.server.Stop(t)
		conf := l.server.Config()
		table := fmt.Sprintf("%d 02:00:00:00:00:01 %v * *\n", l.end.Add(lent).Unix(), l.addr)
		if err := os.WriteFile(conf.LeaseFile, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
		l.server = rig.RunDnsmasq(t, l.Server, conf)
	}
	for _, l := range list {
		f, _ := l.Capture.AwaitType(t, 0, lent, dhcpv4.MessageTypeNak, nil)
		begin[l.name] = f.At
	}
	const wait = 2 * lent
	when := watch(t, list, time.Now().Add(wait),
		func(l *life) bool { return l.usable(t) != l.addr },
		func(l *life) bool { a := l.usable(t); return a.IsValid() && a != l.addr })
	gone, next := newRow("NAK: until the refused address is gone"), newRow("NAK: until the pod has another address")
	for _, l := range list {
		gone.Figures[l.name] = after(begin[l.name], when[0][l.name], wait)
		next.Figures[l.name] = after(begin[l.name], when[1][l.name], wait)
	}
	return []row{gone, next}
}

// expiry takes the server away until both pods have lost their address, and brings it
// back.
func expiry(t *testing.T, _ extent) []row {
	const most, back = 10 * time.Minute, 75 * time.Second
	list := lives(t, lending(0, 0))
	for _, l := range list {
		l.server.Stop(t)
	}
	lost := watch(t, list, list[0].end.Add(most), func(l *life) bool { return !l.usable(t).IsValid() })[0]
	begin := time.Now()
	for _, l := range list {
		conf := l.server.Config() // with its leases
		l.server = rig.RunDnsmasq(t, l.Server, conf)
	}
	has := watch(t, list, begin.Add(back), func(l *life) bool { return l.usable(t).IsValid() })[0]
	end, again := newRow("expiry: until the address cannot be used any more"), newRow("... and is there again, when the server is")
	for _, l := range list {
		end.Figures[l.name] = after(l.end, lost[l.name], most)
		again.Figures[l.name] = after(begin, has[l.name], back)
	}
	return []row{end, again}
}
