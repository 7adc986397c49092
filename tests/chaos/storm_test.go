package chaos

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// storm is a lab in which things go wrong, and what is known of them.
type storm struct {
	*rig.Lab
	rng   *rand.Rand
	start rig.StartFunc
	// server is nil while none runs; cfg is for the next one.
	server rig.Server
	cfg    rig.ServerConfig
	// up are the times in which a server ran, the last one open while it does.
	up []span

	// target is how many pods there are, about.
	target int
	live   []*pod
	// busy is the number of verbs under way, which tell doneC of their end.
	busy  int
	doneC chan verbDone
	// due are things that end a trouble, when their time comes.
	due []repair

	happened map[string]int
}

// span is a time from begin to end; an end of zero is not there yet.
type span struct{ begin, end time.Time }

func (s span) has(at time.Time) bool {
	return at.After(s.begin) && (s.end.IsZero() || at.Before(s.end))
}

// repair ends a trouble.
type repair struct {
	kind string
	at   time.Time
	do   func(t *testing.T)
}

// trouble is something that can go wrong. begin starts it, the function that it
// returns, which may be nil, ends it after at most longest. While it lasts, none of
// its kind begins.
type trouble struct {
	kind    string
	weight  int
	longest time.Duration
	begin   func(s *storm, t *testing.T) (end func(t *testing.T))
}

var troubles = []trouble{
	{"pod", 40, 0, (*storm).turnOver},
	{"weather", 4, 8 * time.Second, (*storm).badWeather},
	{"engine", 1, 3 * time.Second, (*storm).killEngine},
	{"server", 3, 8 * time.Second, (*storm).serverTrouble},
	{"link", 2, 3 * time.Second, (*storm).linkDown},
}

// rage lets things go wrong for some time. The moments are random: there is no
// event to wait for.
func (s *storm) rage(t *testing.T, length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		select {
		case v := <-s.doneC:
			s.done(t, v)
			continue
		case <-time.After(time.Duration(10+s.rng.IntN(300)) * time.Millisecond):
		}
		s.repairDue(t, time.Now())
		s.next(t)
	}
}

// next begins a trouble.
func (s *storm) next(t *testing.T) {
	sum := 0
	for _, tr := range troubles {
		sum += tr.weight
	}
	n := s.rng.IntN(sum)
	for _, tr := range troubles {
		if n -= tr.weight; n >= 0 {
			continue
		}
		if slices.ContainsFunc(s.due, func(r repair) bool { return r.kind == tr.kind }) {
			return
		}
		if end := tr.begin(s, t); end != nil {
			s.due = append(s.due, repair{tr.kind, time.Now().Add(time.Duration(s.rng.Int64N(int64(tr.longest)))), end})
		}
		return
	}
}

// repairDue ends the troubles whose time is over.
func (s *storm) repairDue(t *testing.T, now time.Time) {
	for _, r := range slices.Clone(s.due) {
		if !r.at.After(now) {
			s.repairKind(t, r.kind)
		}
	}
}

// repairKind ends a trouble before its time, if there is one of that kind.
func (s *storm) repairKind(t *testing.T, kind string) {
	if i := slices.IndexFunc(s.due, func(r repair) bool { return r.kind == kind }); i >= 0 {
		r := s.due[i]
		s.due = slices.Delete(s.due, i, i+1)
		r.do(t)
	}
}

// calm ends all troubles and waits for the verbs under way.
func (s *storm) calm(t *testing.T) {
	for len(s.due) > 0 {
		s.repairKind(t, s.due[0].kind)
	}
	for s.busy > 0 {
		s.done(t, <-s.doneC)
	}
	t.Logf("happened: %v", s.happened)
}

// badWeather loses and doubles packets on the wire, in both directions. The rules
// sit where the packets leave: a packet socket, as Kea's, sees what comes in before
// any rule does.
func (s *storm) badWeather(t *testing.T) func(*testing.T) {
	loss, double := s.rng.IntN(40), s.rng.IntN(40)
	s.happened["weather"]++
	for n, ifName := range s.ends() {
		s.nft(t, n, fmt.Sprintf(`table netdev weather {
			chain out {
				type filter hook egress device %q priority 0
				numgen random mod 100 < %d drop
				numgen random mod 100 < %d dup to %[1]q
			}
		}`, ifName, loss, double))
	}
	return func(t *testing.T) {
		for n := range s.ends() {
			s.nft(t, n, "delete table netdev weather")
		}
	}
}

// ends are the two ends of the wire.
func (s *storm) ends() map[*rig.Netns]string {
	return map[*rig.Netns]string{s.Server: rig.ServerIface, s.Node: rig.Uplink}
}

func (s *storm) nft(t *testing.T, n *rig.Netns, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	var out []byte
	err := n.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

func (s *storm) killEngine(t *testing.T) func(*testing.T) {
	s.happened["engine killed"]++
	s.Engine.Kill(t)
	return func(t *testing.T) { s.Engine.Start(t) }
}

// linkDown takes one of the wire's ends down.
func (s *storm) linkDown(t *testing.T) func(*testing.T) {
	s.happened["link down"]++
	n, ifName := s.Node, rig.Uplink
	if s.rng.IntN(2) == 0 {
		n, ifName = s.Server, rig.ServerIface
	}
	n.IP(t, "link", "set", ifName, "down")
	return func(t *testing.T) { n.IP(t, "link", "set", ifName, "up") }
}

// serverTrouble stops the server, and changes what the next one is or knows.
func (s *storm) serverTrouble(t *testing.T) func(*testing.T) {
	s.stopServer(t)
	switch s.rng.IntN(4) {
	case 0:
		s.happened["server stopped"]++
	case 1:
		s.happened["server replaced"]++
		s.replaceServer(t)
	case 2:
		s.happened["server emptied"]++
		if err := os.Remove(s.cfg.LeaseFile); err != nil {
			t.Fatal(err)
		}
	case 3:
		s.happened["lease lent to another"]++
		s.rob(t)
	}
	return s.startServer
}

// startServer starts the server, on a link that runs: Kea serves none that did not
// when it started.
func (s *storm) startServer(t *testing.T) {
	s.repairKind(t, "link")
	// The kernel says UP some time after the other end came up.
	for again := range s.looks(t) {
		if state := strings.Fields(s.Lab.Server.IP(t, "-br", "link", "show", "dev", rig.ServerIface))[1]; state == "UP" {
			break
		}
		<-again
	}
	s.server = s.start(t, s.Lab.Server, s.cfg)
	s.cfg = s.server.Config()
	s.up = append(s.up, span{begin: time.Now()})
}

func (s *storm) stopServer(t *testing.T) {
	s.up[len(s.up)-1].end = time.Now()
	s.server.Stop(t)
	s.server = nil
}

// replaceServer gives the next server another identifier; the table stays.
func (s *storm) replaceServer(t *testing.T) {
	next := netip.PrefixFrom(netip.MustParseAddr("10.77.0.2"), s.cfg.Subnet.Bits())
	if s.cfg.Subnet == next {
		next = rig.ServerAddr
	}
	s.Lab.Server.IP(t, "addr", "del", s.cfg.Subnet.String(), "dev", rig.ServerIface)
	s.Lab.Server.IP(t, "addr", "add", next.String(), "dev", rig.ServerIface)
	s.cfg.Subnet = next
}

// strangers begin the MACs of clients that are not there.
const strangers = "02:00:00:"

// rob lends the address of one pod to a stranger, so that its next renewal is
// refused.
func (s *storm) rob(t *testing.T) {
	if len(s.live) == 0 {
		return
	}
	mac := s.live[s.rng.IntN(len(s.live))].mac
	table, err := os.ReadFile(s.cfg.LeaseFile)
	if err != nil {
		t.Fatal(err)
	}
	stranger := fmt.Sprintf("%s%02x:%02x:%02x", strangers, s.rng.IntN(256), s.rng.IntN(256), s.rng.IntN(256))
	if err := os.WriteFile(s.cfg.LeaseFile, []byte(strings.ReplaceAll(string(table), mac, stranger)), 0o644); err != nil {
		t.Fatal(err)
	}
}
