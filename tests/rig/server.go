package rig

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// ServerConfig is what a DHCP server is told, whichever it is.
type ServerConfig struct {
	// Interface is the one it serves; it must be up, and its peer too.
	Interface string
	// Subnet is the network with the server's own address: 10.77.0.1/24.
	Subnet netip.Prefix
	// First and Last are the ends of the pool.
	First, Last netip.Addr
	// Lifetime, T1 and T2 of a lease in whole seconds. A Lifetime of 0 is an
	// infinite lease; a T1 of 0 leaves both timers to the client. dnsmasq lends
	// nothing below two minutes, and takes no T1 below three seconds.
	Lifetime, T1, T2 time.Duration
	// LeaseFile is kept over a restart of the server; empty: a new one.
	LeaseFile string
	// PingCheck lets dnsmasq wait for an ICMP echo from an address that it has not
	// lent before, three seconds for each new client.
	PingCheck bool
	// Dnsmasq are further command-line options, for dnsmasq alone.
	Dnsmasq []string
}

// Held is a lease in a server's own table that has not been given back.
type Held struct {
	MAC      string
	Addr     netip.Addr
	Hostname string
	// ClientID is option 61 as colon-separated bytes; "" or "*" when none was sent.
	ClientID string
}

// Server is a running DHCP server.
type Server interface {
	// Held reads the server's lease table from its disk.
	Held(t testing.TB) []Held
	// AwaitHeld waits until the lease table satisfies ok.
	AwaitHeld(t testing.TB, what string, ok func([]Held) bool) []Held
	// Stop ends the server as its service manager would. The lease file stays.
	Stop(t testing.TB)
	// Config is what it was started with, the LeaseFile filled in.
	Config() ServerConfig
}

// A StartFunc starts one kind of server; it returns when the server answers.
type StartFunc func(t testing.TB, n *Netns, cfg ServerConfig) Server

// Nothing is the condition of an empty lease table.
func Nothing(held []Held) bool { return len(held) == 0 }

// Holds is the condition that addr, and nothing else, is lent to mac.
func Holds(mac net.HardwareAddr, addr netip.Addr) func([]Held) bool {
	return func(held []Held) bool {
		return len(held) == 1 && held[0].MAC == mac.String() && held[0].Addr == addr
	}
}

// leaseFile is a server's lease table on disk, and the means to wait for a change
// of it.
type leaseFile struct {
	path  string
	parse func(string) []Held
}

func newLeaseFile(t testing.TB, path, name string, parse func(string) []Held) leaseFile {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), name)
	}
	return leaseFile{path: path, parse: parse}
}

func (f leaseFile) Held(t testing.TB) []Held {
	t.Helper()
	b, err := os.ReadFile(f.path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatalf("read the server's leases: %v", err)
	}
	return f.parse(string(b))
}

func (f leaseFile) AwaitHeld(t testing.TB, what string, ok func([]Held) bool) []Held {
	t.Helper()
	var held []Held
	err := AwaitFolder(t.Context(), filepath.Dir(f.path), Patience, func() bool {
		held = f.Held(t)
		return ok(held)
	})
	if err != nil {
		t.Fatalf("the server's table did not come to %s: %v; it holds:\n%s", what, err, list(held))
	}
	return held
}

// AwaitFile waits until a file is there; its folder must be there already.
func AwaitFile(ctx context.Context, path string, wait time.Duration) error {
	return AwaitFolder(ctx, filepath.Dir(path), wait, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// settle is how long a server's lease table must stay as it is to count: dnsmasq
// empties its file for a moment whenever it writes it anew.
const settle = 50 * time.Millisecond

// AwaitFolder asks ok now and at every change in a folder, until it says yes and
// still says so when nothing has changed for the time of settle.
func AwaitFolder(ctx context.Context, folder string, wait time.Duration, ok func() bool) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(folder); err != nil {
		return fmt.Errorf("watch %s: %w", folder, err)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		var settled <-chan time.Time
		if ok() {
			settled = time.After(settle)
		}
		select {
		case <-w.Events:
		case <-settled:
			if ok() {
				return nil
			}
		case err := <-w.Errors:
			return fmt.Errorf("watch %s: %w", folder, err)
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", wait, ctx.Err())
		}
	}
}

// sortHeld brings a table into the order of its addresses.
func sortHeld(held []Held) []Held {
	slices.SortFunc(held, func(a, b Held) int { return a.Addr.Compare(b.Addr) })
	return held
}
