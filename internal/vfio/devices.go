package vfio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/boot"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// Config is what Devices is told once.
type Config struct {
	// PCI is where the devices are; the zero value is the machine.
	PCI sriov.Config
	// StateDir is the engine's; the journal is the folder borrowed in it.
	StateDir string
	// NetnsDir is where the private namespaces get their names; empty:
	// /run/dhcp-meta/netns. The engine's Links must be allowed to enter them.
	NetnsDir string
	// LockDir is the folder in which sriov-cni keeps its locks and which pod has
	// which device; empty: /var/lib/cni/sriov/pci.
	LockDir string
	// Window is for how long a device may be away from vfio-pci, the way back
	// included; 0: 20 s.
	Window time.Duration
	// Policy is which kinds of devices may be borrowed.
	Policy sriov.Policy
	// Log is told what an operator should know; nil discards it.
	Log *slog.Logger
	// Metrics counts; nil: for nobody.
	Metrics *Metrics
}

const (
	defaultNetnsDir = "/run/dhcp-meta/netns"
	defaultLockDir  = "/var/lib/cni/sriov/pci"
	defaultWindow   = 20 * time.Second
	// longestReturn is how much of the window is kept for the way back. It takes
	// tenths of a second where nothing is wrong.
	longestReturn = 5 * time.Second
	// lockLimit is how long a device that somebody else works on is waited for.
	lockLimit = 10 * time.Second
	// healEvery is how often what could not be given back is tried again.
	healEvery = 10 * time.Second
)

// Devices are the virtual functions of the node. It is safe for concurrent use.
type Devices struct {
	host     *sriov.Host
	net      network
	journal  *journal
	root     string // of proc and dev
	netnsDir string
	locks    locks
	window   time.Duration
	policy   sriov.Policy
	log      *slog.Logger
	metrics  *Metrics
	bootID   string

	mu    sync.Mutex
	slots map[string]*slot
	// macs are those that interfaces of borrowed devices have, with the device.
	macs map[string]string
}

var _ engine.Devices = (*Devices)(nil)

// New prepares Devices, and the folder of the journal. It touches no device: Heal
// is the first thing to do.
func New(cfg Config) (*Devices, error) {
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fmt.Errorf("state folder %q is not absolute", cfg.StateDir)
	}
	host, err := sriov.Open(cfg.PCI)
	if err != nil {
		return nil, err
	}
	id, err := boot.ID()
	if err != nil {
		return nil, err
	}
	d := &Devices{
		host: host, net: kernel{}, journal: &journal{dir: filepath.Join(cfg.StateDir, "borrowed")},
		root: or(cfg.PCI.Root, "/"), netnsDir: or(cfg.NetnsDir, defaultNetnsDir), locks: locks{or(cfg.LockDir, defaultLockDir)},
		window: cfg.Window, policy: cfg.Policy, log: cfg.Log, metrics: cfg.Metrics, bootID: id, slots: map[string]*slot{}, macs: map[string]string{},
	}
	if d.window == 0 {
		d.window = defaultWindow
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.metrics == nil {
		d.metrics = NewMetrics(nil)
	}
	if err := os.MkdirAll(d.journal.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal of borrowed devices: %w", err)
	}
	return d, nil
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Inspect implements engine.Devices.
func (d *Devices) Inspect(ctx context.Context, address string) (engine.Device, error) {
	found, err := d.find(address)
	if err != nil {
		return engine.Device{}, err
	}
	return engine.Device{Address: found.Address, Driver: found.Driver, VFIO: found.Driver == sriov.VFIOPCI}, nil
}

func (d *Devices) find(address string) (sriov.Device, error) {
	found, err := d.host.Find(address)
	switch {
	case errors.Is(err, sriov.ErrAddress):
		return found, api.WithCode(api.CodeConfig, fmt.Errorf("device of the interface: %w", err))
	case err != nil:
		return found, api.WithCode(api.CodeEnv, fmt.Errorf("device of the interface: %w", err))
	}
	return found, nil
}

// A slot is one device's place: whoever has its turn may change the device.
type slot struct {
	address string
	turn    chan struct{} // has room for the one whose turn it is
	// stuck ends when a write ends that the kernel did not return from in time.
	// It belongs to who has the turn.
	stuck <-chan struct{}

	mu   sync.Mutex
	lent bool // an engine's session has the device
}

func (s *slot) setLent(lent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent = lent
}

func (s *slot) isLent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent
}

func (d *Devices) slot(address string) *slot {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.slots[address]
	if s == nil {
		s = &slot{address: address, turn: make(chan struct{}, 1)}
		d.slots[address] = s
	}
	return s
}

// take waits for the turn of a device, for lockLimit at most.
func (s *slot) take(ctx context.Context) (done func(), err error) {
	limit := time.NewTimer(lockLimit)
	defer limit.Stop()
	select {
	case s.turn <- struct{}{}:
		return sync.OnceFunc(func() { <-s.turn }), nil
	case <-limit.C:
		return nil, errors.New("the engine is busy with it for another attachment")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// do runs a change that the kernel may not return from. When ctx ends first, the
// change goes on, and nothing else may be done to the device before it has ended.
func (s *slot) do(ctx context.Context, change func() error) error {
	if s.stuck != nil {
		select {
		case <-s.stuck:
			s.stuck = nil
		case <-ctx.Done():
			return fmt.Errorf("an earlier write has not returned: %w", context.Cause(ctx))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	errC, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		errC <- change()
	}()
	select {
	case err := <-errC:
		return err
	case <-ctx.Done():
		select {
		case err := <-errC:
			return err
		default:
		}
		s.stuck = ended
		return fmt.Errorf("the kernel does not return: %w", context.Cause(ctx))
	}
}
