package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

var (
	soakLength = flag.Duration("soak", 0, "how long TestSoak runs; 0: not at all, `make soak` gives a time")
	soakLeases = flag.Int("soak-leases", 1000, "how many leases TestSoak keeps")
	soakT1     = flag.Duration("soak-t1", 20*time.Second, "T1 of TestSoak's leases")
)

// Many leases with a T1 of seconds are kept for a long time on a wire that is fine.
// None is lost, no address changes, and the engine does not grow: what it takes in
// the last quarter of the time is what it took in the third.
func TestSoak(t *testing.T) {
	if *soakLength == 0 {
		t.Skip("takes half an hour: `make soak`")
	}
	s := newSoak(t)
	before := s.load(t)
	s.addAll(t)
	addresses := s.addresses(t)
	mark := s.Capture.Len()

	samples := s.watch(t, *soakLength)
	third, last := samples.quarter(2), samples.quarter(3)
	t.Logf("third quarter %v, last quarter %v", third, last)
	for what, grown := range map[string]bool{
		"threads":     last.threads > third.threads+2,
		"descriptors": last.descriptors > third.descriptors+slack(third.descriptors),
		"goroutines":  last.goroutines > third.goroutines+slack(third.goroutines),
		"memory":      last.rss > third.rss+slack(third.rss),
	} {
		if grown {
			t.Errorf("%s grew", what)
		}
	}
	acks := s.Capture.Count(mark, rig.Type(dhcpv4.MessageTypeAck, nil))
	t.Logf("%d leases, %d renewals", len(s.live), acks)
	// A lease that went on beyond T1 but once would make less than half of them.
	if least := len(s.live) * int(*soakLength / *soakT1) / 2; acks < least {
		t.Errorf("%d renewals, want at least %d", acks, least)
	}
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeNak, dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeDecline} {
		if n := s.Capture.Count(mark, rig.Type(kind, nil)); n > 0 {
			t.Errorf("%d %v, want none", n, kind)
		}
	}
	s.awaitAgreement(t)
	for pod, addr := range s.addresses(t) {
		if addresses[pod] != addr {
			t.Errorf("pod %s had %s and has %s", pod, addresses[pod], addr)
		}
	}
	s.delAll(t)
	s.server.AwaitHeld(t, "empty", rig.Nothing)
	s.awaitNothingLeft(t, before)
}

// newSoak is a lab without trouble and with room for the leases.
func newSoak(t *testing.T) *storm {
	t.Helper()
	s := newStorm(t, rand.New(rand.NewPCG(0, 0)), rig.StartDnsmasq, 4**soakT1)
	s.stopServer(t)
	wide := netip.MustParsePrefix("10.77.0.1/16")
	s.Lab.Server.IP(t, "addr", "del", s.cfg.Subnet.String(), "dev", rig.ServerIface)
	s.Lab.Server.IP(t, "addr", "add", wide.String(), "dev", rig.ServerIface)
	s.cfg.Subnet, s.cfg.First, s.cfg.Last = wide, netip.MustParseAddr("10.77.1.1"), netip.MustParseAddr("10.77.32.254")
	s.cfg.Lifetime, s.cfg.T1, s.cfg.T2 = max(4**soakT1, 2*time.Minute), *soakT1, 3**soakT1
	s.startServer(t)
	s.target = *soakLeases
	return s
}

// addresses are those that the engine lists, by the pods' names.
func (s *storm) addresses(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, st := range s.Engine.Leases(t) {
		all[st.Pod.Name] = st.Address
	}
	return all
}

// sample is what the engine takes at one moment.
type sample struct{ threads, descriptors, goroutines, rss int }

func (a sample) String() string {
	return fmt.Sprintf("%d threads, %d descriptors, %d goroutines, %d KB", a.threads, a.descriptors, a.goroutines, a.rss/1024)
}

// slack is what a figure may differ between two quarters: its last moments count,
// and at any moment some renewals are under way.
func slack(n int) int { return max(n/10, 8) }

type samples []sample

// watch samples the engine for some time.
func (s *storm) watch(t *testing.T, length time.Duration) (all samples) {
	t.Helper()
	every := max(length/240, time.Second)
	end := time.After(length)
	for tick := time.NewTicker(every); ; {
		select {
		case <-end:
			tick.Stop()
			return all
		case <-tick.C:
		}
		now, load := s.Engine.Load(t), s.load(t)
		all = append(all, sample{now.Threads, now.Descriptors, load.goroutines, int(now.RSS)})
		if n := len(all); n%20 == 0 {
			t.Logf("%v: %v", time.Duration(n)*every, all[n-1])
		}
	}
}

// quarter is the median of each figure in a quarter of the time, counted from 0;
// of the threads, which Go never gives back, it is the most.
func (all samples) quarter(n int) (q sample) {
	part := all[n*len(all)/4 : (n+1)*len(all)/4]
	middle := func(of func(sample) int) int {
		var list []int
		for _, a := range part {
			list = append(list, of(a))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	q.descriptors = middle(func(a sample) int { return a.descriptors })
	q.goroutines = middle(func(a sample) int { return a.goroutines })
	q.rss = middle(func(a sample) int { return a.rss })
	for _, a := range part {
		q.threads = max(q.threads, a.threads)
	}
	return q
}
