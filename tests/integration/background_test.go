package integration

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// background is a call of the plugin that runs beside the test.
type background struct {
	verb string
	done chan struct{}
	// outcome and err are valid when done is closed.
	outcome rig.Outcome
	err     error
}

// background starts a verb and returns at once.
func (l *lab) background(verb string, call rig.Call) *background {
	b := &background{verb: verb, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.outcome, b.err = l.Node.CNI(verb, call)
	}()
	return b
}

// wait returns how the call ended; b.outcome.Err is the plugin's own error.
func (b *background) wait(t testing.TB) rig.Outcome {
	t.Helper()
	select {
	case <-b.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s has not ended after two minutes", b.verb)
	}
	if b.err != nil {
		t.Fatalf("%s: %v", b.verb, b.err)
	}
	return b.outcome
}

func (b *background) succeeds(t testing.TB) rig.Outcome {
	t.Helper()
	o := b.wait(t)
	if o.Err != nil {
		t.Fatalf("%s: %v\n%s", b.verb, o.Err, o.Stderr)
	}
	return o
}

// awaitUp returns a channel that is closed when the interface is up. It listens
// before it returns.
func (s *sandbox) awaitUp(t testing.TB, ifName string) <-chan struct{} {
	t.Helper()
	ns, err := netns.GetFromPath(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	changes, done := make(chan netlink.LinkUpdate), make(chan struct{})
	t.Cleanup(func() { close(done) })
	if err := netlink.LinkSubscribeAt(ns, changes, done); err != nil {
		t.Fatalf("listen for links in %s: %v", s.Name, err)
	}
	up := make(chan struct{})
	go func() {
		open := true
		for c := range changes {
			if open && c.Link.Attrs().Name == ifName && c.IfInfomsg.Flags&unix.IFF_UP != 0 {
				close(up)
				open = false
			}
		}
	}()
	return up
}
