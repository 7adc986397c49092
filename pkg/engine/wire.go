package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// wire is a session's way to the network during one exchange: a port that is
// open or about to be. While the link has no carrier the machine's time runs on,
// and the last message it wanted to send leaves as soon as the link can carry it.
// One goroutine uses it.
type wire struct {
	links  Links
	target Target

	port    Port
	openedC chan openResult // not nil while a port is being opened
	cancel  context.CancelFunc
	unsent  *dhcp4.Send
	// why is why the port is not open, as far as that is known.
	why error
}

type openResult struct {
	port Port
	err  error
}

// tellAfter is how long a link may be not ready before people hear of it and why.
// The port tells that only when it gives up.
const tellAfter = 3 * time.Second

// errNotYet ends the first wait for a link, which is asked why it is not ready.
var errNotYet = errors.New("not ready so far")

// open begins to open the port unless it is open or being opened. For the first time
// it ends with errNotYet after a while, and with the reason.
func (w *wire) open(ctx context.Context) {
	if errors.Is(w.why, errNotYet) {
		w.begin(context.WithCancel(ctx))
		return
	}
	w.begin(context.WithTimeoutCause(ctx, tellAfter, errNotYet))
}

func (w *wire) begin(ctx context.Context, cancel context.CancelFunc) {
	if w.port != nil || w.openedC != nil {
		cancel()
		return
	}
	w.cancel = cancel
	c := make(chan openResult, 1)
	w.openedC = c
	go func() {
		port, err := w.links.Open(ctx, w.target)
		c <- openResult{port, err}
	}()
}

// openFor waits until the port is open, for some time at most; then it ends with
// errNotYet, and the reason.
func (w *wire) openFor(ctx context.Context, d time.Duration) error {
	w.begin(context.WithTimeoutCause(ctx, d, errNotYet))
	return w.awaitOpen()
}

// openNow waits until the port is open.
func (w *wire) openNow(ctx context.Context) error {
	w.begin(context.WithCancel(ctx))
	return w.awaitOpen()
}

func (w *wire) awaitOpen() error {
	if w.openedC == nil {
		return nil
	}
	return w.opened(<-w.openedC) // Open ends with ctx
}

// opened takes what openedC gave.
func (w *wire) opened(o openResult) error {
	w.openedC = nil
	w.cancel()
	w.port, w.why = o.port, o.err
	return o.err
}

// errNotOpen says that a message waits for the port to open.
var errNotOpen = errors.New("link is not ready")

// waiting returns the message that waits for the port, once.
func (w *wire) waiting() (dhcp4.Send, bool) {
	if w.unsent == nil {
		return dhcp4.Send{}, false
	}
	s := *w.unsent
	w.unsent = nil
	return s, true
}

// send sends on the open port. Without one it keeps the message, in place of an
// earlier one, until the port opens.
func (w *wire) send(ctx context.Context, s dhcp4.Send) error {
	if w.port == nil {
		w.unsent = &s
		w.open(ctx)
		return errNotOpen
	}
	return w.port.Send(ctx, s)
}

// receivedC is the port's stream; nil, which blocks, while there is no port.
func (w *wire) receivedC() <-chan dhcp4.Received {
	if w.port == nil {
		return nil
	}
	return w.port.Received()
}

// lost gives up a port whose stream has ended and opens another one.
func (w *wire) lost(ctx context.Context) {
	w.closePort()
	w.open(ctx)
}

// close ends the exchange. It may be repeated.
func (w *wire) close() {
	w.closePort()
	w.unsent = nil
	if w.openedC != nil {
		w.cancel()
		if o := <-w.openedC; o.port != nil {
			_ = o.port.Close()
		}
		w.openedC = nil
	}
}

func (w *wire) closePort() {
	if w.port != nil {
		_ = w.port.Close() // a socket that is done with: nothing to be done about an error
		w.port = nil
	}
}

// closing are wires that are being closed after the answer to the verb that used
// them: the kernel takes its time to end a packet socket, tens of milliseconds
// each, which is nothing that a runtime has to wait for.
type closing struct {
	mu   sync.Mutex
	over bool
	wg   sync.WaitGroup
}

// wait waits until all are closed. Whatever is closed later is closed at once.
func (c *closing) wait() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.wg.Wait()
}

// closeLater closes a wire that nobody uses any more; a nil one is none.
func (e *Engine) closeLater(w *wire) {
	if w == nil {
		return
	}
	c := &e.closing
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		w.close()
		return
	}
	c.wg.Go(w.close)
}
