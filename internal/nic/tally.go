package nic

import (
	"context"
	"sync/atomic"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// A Tally counts what arrives at an interface, for people who look for the place
// where a packet stopped: a link on which nothing arrives is another trouble
// than one on which the server answers everybody else. It is safe for concurrent
// use.
type Tally struct {
	socket  *packet.Conn
	doneC   chan struct{}
	frames  atomic.Int64
	replies atomic.Int64
}

// Tally starts to count at the interface of t, which must be up: after Open. The
// Tally holds a socket that hears everything, a goroutine, and the namespace
// until Close; it is for a moment of looking, not for an exchange that is as
// usual.
func (l *Links) Tally(ctx context.Context, t engine.Target) (*Tally, error) {
	s, _, err := l.listenOn(ctx, t, unix.ETH_P_ALL, tallyFilter)
	if err != nil {
		return nil, err
	}
	c := &Tally{socket: s, doneC: make(chan struct{})}
	go c.count()
	return c, nil
}

// count ends with the socket, or when the interface is set down.
func (c *Tally) count() {
	defer close(c.doneC)
	buf := make([]byte, otherReply)
	for {
		n, _, err := c.socket.ReadFrom(buf)
		if err != nil {
			return
		}
		c.frames.Add(1)
		if n == otherReply {
			c.replies.Add(1)
		}
	}
}

// Seen returns how many frames of any kind have arrived at the interface, for it
// or for all, and how many of them were DHCP replies to other clients.
func (c *Tally) Seen() (frames, otherReplies int) {
	otherReplies = int(c.replies.Load()) // first: each of them is a frame too
	return int(c.frames.Load()), otherReplies
}

// Close ends the counting. A second call does nothing.
func (c *Tally) Close() error {
	err := c.socket.Close()
	<-c.doneC
	return err
}
