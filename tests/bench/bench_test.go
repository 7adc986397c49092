package bench

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// newLab is a lab whose server has room for a thousand leases that nobody renews
// while the benchmark runs.
func newLab(b *testing.B) *rig.Lab {
	b.Helper()
	l := rig.NewLab(b)
	l.Server.IP(b, "addr", "flush", "dev", rig.ServerIface)
	l.Server.IP(b, "addr", "add", "10.77.0.1/16", "dev", rig.ServerIface)
	rig.StartDnsmasq(b, l.Server, rig.ServerConfig{
		Interface: rig.ServerIface,
		Subnet:    netip.MustParsePrefix("10.77.0.1/16"),
		First:     netip.MustParseAddr("10.77.1.1"),
		Last:      netip.MustParseAddr("10.77.32.254"),
		Lifetime:  12 * time.Hour,
	})
	return l
}

func newSandboxes(b *testing.B, n int) []*rig.Sandbox {
	b.Helper()
	list := make([]*rig.Sandbox, n)
	for i := range list {
		list[i] = rig.NewSandbox(b)
	}
	return list
}

// atOnce runs f for all sandboxes, no more than width at a time, and returns how
// long each took.
func atOnce(b *testing.B, width int, pods []*rig.Sandbox, f func(*rig.Sandbox) error) []time.Duration {
	b.Helper()
	took := make([]time.Duration, len(pods))
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i, pod := range pods {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			if err := f(pod); err != nil {
				b.Error(err)
			}
			took[i] = time.Since(begin)
		})
	}
	wg.Wait()
	return took
}

// each executes a verb of dhcp-meta for all sandboxes.
func each(b *testing.B, l *rig.Lab, verb string, width int, pods []*rig.Sandbox, settings ...rig.Object) []time.Duration {
	b.Helper()
	conf := l.Macvlan(nil)
	if len(settings) > 0 {
		conf = l.Macvlan(settings[0])
	}
	return atOnce(b, width, pods, func(pod *rig.Sandbox) error {
		o, err := l.Node.CNI(verb, pod.Call("net1", conf))
		if err == nil && o.Err != nil {
			err = o.Err
		}
		return err
	})
}

// bare executes a verb of the macvlan plugin alone.
func bare(b *testing.B, l *rig.Lab, verb string, width int, pods []*rig.Sandbox) []time.Duration {
	b.Helper()
	conf := []byte(`{"cniVersion":"1.0.0","name":"site","type":"macvlan","master":"` + rig.Uplink + `"}`)
	return atOnce(b, width, pods, func(pod *rig.Sandbox) error {
		cmd := exec.Command(filepath.Join(rig.Plugins(), "macvlan"))
		cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + pod.ID, "CNI_NETNS=" + pod.Path,
			"CNI_IFNAME=net1", "CNI_PATH=" + rig.Plugins()}
		var out bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &out, &out
		if err := l.Node.Do(cmd.Start); err != nil {
			return err
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%s by macvlan: %w: %s", verb, err, out.Bytes())
		}
		return nil
	})
}

// answerTime is the sum of what the server took from DISCOVER to OFFER and from
// REQUEST to ACK, the median over all clients, and the whole exchange likewise.
func answerTime(frames []rig.Frame) (server, exchange time.Duration) {
	type client struct{ question, begin, answers, whole time.Duration }
	clients := map[string]*client{}
	start := frames[0].At
	for _, f := range frames {
		mac := f.Msg.ClientHWAddr.String()
		c := clients[mac]
		if c == nil {
			c = &client{begin: f.At.Sub(start)}
			clients[mac] = c
		}
		switch at := f.At.Sub(start); f.Type {
		case dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest:
			c.question = at
		case dhcpv4.MessageTypeOffer:
			c.answers += at - c.question
		case dhcpv4.MessageTypeAck:
			c.answers += at - c.question
			c.whole = at - c.begin
		}
	}
	var answers, whole []time.Duration
	for _, c := range clients {
		answers, whole = append(answers, c.answers), append(whole, c.whole)
	}
	return median(answers), median(whole)
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// ADD from the execution of the plugin to its end, against what cannot be saved: the
// ADD of the macvlan plugin alone, and what the server needed for its two answers.
// Conflict detection waits for an answer that should not come, so it is measured
// apart.
func BenchmarkAdd(b *testing.B) {
	for _, detection := range []string{"off", "fast"} {
		for _, width := range []int{1, 60} {
			b.Run(fmt.Sprintf("conflictDetection-%s/%d-at-once", detection, width), func(b *testing.B) {
				benchmarkAdd(b, width, rig.Object{"conflictDetection": detection})
			})
		}
	}
}

func benchmarkAdd(b *testing.B, width int, settings rig.Object) {
	l := newLab(b)
	for b.Loop() {
		b.StopTimer()
		pods := newSandboxes(b, 60)
		alone := median(bare(b, l, "ADD", width, pods))
		bare(b, l, "DEL", width, pods)
		mark := l.Capture.Len()
		b.StartTimer()
		took := median(each(b, l, "ADD", width, pods, settings))
		b.StopTimer()
		server, exchange := answerTime(l.Capture.Since(mark))
		each(b, l, "DEL", 16, pods)
		b.ReportMetric(ms(took), "ms/ADD")
		b.ReportMetric(ms(exchange), "ms/DORA")
		b.ReportMetric(ms(server), "ms/server")
		b.ReportMetric(ms(alone), "ms/macvlan-alone")
		b.ReportMetric(float64(took)/float64(alone+server), "ADD/(macvlan+server)")
		b.StartTimer()
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// The start of dhcp-meta against a static Go program that does nothing. The two
// take turns, so that both meet the same machine.
func BenchmarkPluginStart(b *testing.B) {
	rig.Need(b)
	empty := emptyProgram(b)
	const turns = 200
	for b.Loop() {
		var ours, theirs []time.Duration
		for range turns {
			theirs = append(theirs, execTime(b, empty))
			ours = append(ours, execTime(b, rig.Program("dhcp-meta"), "CNI_COMMAND=VERSION"))
		}
		b.ReportMetric(ms(median(ours)), "ms/dhcp-meta")
		b.ReportMetric(ms(median(theirs)), "ms/empty")
		b.ReportMetric(float64(median(ours))/float64(median(theirs)), "dhcp-meta/empty")
	}
}

func emptyProgram(b *testing.B) string {
	b.Helper()
	folder := b.TempDir()
	source := filepath.Join(folder, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	program := filepath.Join(folder, "empty")
	cmd := exec.Command("go", "build", "-trimpath", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build an empty program: %v\n%s", err, out)
	}
	return program
}

func execTime(b *testing.B, program string, env ...string) time.Duration {
	b.Helper()
	cmd := exec.Command(program)
	cmd.Env = env
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatalf("%s: %v", program, err)
	}
	return time.Since(begin)
}

// Threads, descriptors and memory of the engine by leases, and the time to ready
// with as many records.
func BenchmarkEngine(b *testing.B) {
	for _, leases := range []int{60, 500, 1000} {
		b.Run(fmt.Sprintf("%d-leases", leases), func(b *testing.B) {
			l := newLab(b)
			pods := newSandboxes(b, leases)
			for b.Loop() {
				b.StopTimer()
				none := l.Engine.Load(b)
				b.StartTimer()
				each(b, l, "ADD", 16, pods)
				b.StopTimer()
				// What many calls at once took is given back a second after the last one.
				time.Sleep(2 * time.Second)
				all := l.Engine.Load(b)
				l.Engine.Kill(b)
				begin := time.Now()
				l.Engine.Start(b)
				ready := time.Since(begin)
				restored := l.Engine.Load(b)
				b.ReportMetric(float64(none.Threads), "threads-at-0")
				b.ReportMetric(float64(all.Threads), "threads")
				b.ReportMetric(float64(all.Descriptors-none.Descriptors), "fds-more-than-at-0")
				b.ReportMetric(float64(all.RSS-none.RSS)/1024/float64(leases), "KB/lease")
				b.ReportMetric(float64(restored.RSS)/1024/1024, "MB-after-restart")
				b.ReportMetric(ms(ready), "ms-to-ready")
				each(b, l, "DEL", 16, pods)
				b.StartTimer()
			}
		})
	}
}
