package vfio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

// numbers are those of the virtual functions.
var numbers = map[string]int{vf0: 0, vf1: 1, vf2: 2}

// patience bounds a wait for what must come. It only matters when a test fails.
const patience = 30 * time.Second

const (
	pf  = "0000:01:00.0"
	vf0 = "0000:01:10.0"
	vf1 = "0000:01:10.2"
	vf2 = "0000:01:10.4" // for tests that bring it
)

var (
	mac0  = hw("52:54:00:00:01:00")
	mac1  = hw("52:54:00:00:01:01")
	mac9  = hw("52:54:00:00:01:09")
	macPF = hw("52:54:00:00:00:01")
)

func hw(s string) net.HardwareAddr {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return mac
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errDead is what all of the world says to an engine that was killed.
var errDead = errors.New("the engine was killed")

// world is a node: a sysfs that reacts, its network stack, and a count of all that
// an engine changes, at any of which it may be killed.
type world struct {
	t    testing.TB
	tree *sysfstest.Tree
	net  *fakeNetwork
	dir  string // state, namespaces and locks
	log  *lockedBuffer

	mu     sync.Mutex
	ops    []string
	killAt int // the number of the change before which the engine dies; 0: it lives
	dead   bool
	fail   func(op string) error
}

// newWorld is a node with an Intel 82576, whose two virtual functions are on
// vfio-pci and have MACs.
func newWorld(t testing.TB) *world {
	t.Helper()
	tree, err := sysfstest.New(t.TempDir())
	must(t, err)
	w := &world{t: t, tree: tree, dir: t.TempDir(), log: &lockedBuffer{}}
	w.net = &fakeNetwork{w: w, links: map[int]*fakeLink{}, namespaces: map[string]bool{}, up: true,
		macs: map[string]map[int]net.HardwareAddr{"eth1": {0: mac0, 1: mac1}}, changed: make(chan struct{}, 1)}
	must(t, tree.Register(sysfstest.Driver{Name: "igb", Module: "igb", IDs: []string{"8086:10c9"}}))
	must(t, tree.AddModule(sysfstest.Driver{Module: "igbvf", Name: "igbvf", IDs: []string{"8086:10ca"}}))
	must(t, tree.Register(sysfstest.Driver{Name: "igbvf", Module: "igbvf", IDs: []string{"8086:10ca"}}))
	tree.Bound = func(address, driver string) (string, int) { return w.net.bound(address, driver) }
	tree.Unbound = func(address, _ string) { w.net.unbound(address) }
	must(t, tree.Add(sysfstest.Function{Address: pf, ID: "8086:10c9", Driver: "igb", Group: "10", VFs: 7}))
	must(t, tree.Add(sysfstest.Function{Address: vf0, ID: "8086:10ca", Driver: "vfio-pci", Group: "11", PF: pf}))
	must(t, tree.Add(sysfstest.Function{Address: vf1, ID: "8086:10ca", Driver: "vfio-pci", Group: "12", PF: pf, VF: 1}))
	tree.Before = func(op sysfstest.Op) error {
		return w.op(strings.TrimSpace(op.Kind + " " + op.Driver))
	}
	return w
}

// op is asked before each change of the world.
func (w *world) op(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errDead
	}
	w.ops = append(w.ops, what)
	if w.killAt == len(w.ops) {
		w.dead = true
		return errDead
	}
	if w.fail != nil {
		return w.fail(what)
	}
	return nil
}

func (w *world) setFail(fail func(op string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

func (w *world) done() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ops)
}

// engine starts an engine on the node.
func (w *world) engine(change ...func(*Config)) *Devices {
	w.t.Helper()
	cfg := Config{
		PCI:      sriov.Config{Root: w.tree.Root, Release: sysfstest.Release, Write: w.tree.Write, LoadModule: w.tree.Load},
		StateDir: w.dir, NetnsDir: filepath.Join(w.dir, "netns"), LockDir: filepath.Join(w.dir, "sriov/pci"),
		Window: 10 * time.Second, Log: slog.New(slog.NewTextHandler(w.log, nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	d, err := New(cfg)
	must(w.t, err)
	d.net, d.journal.gate = w.net, w.op
	return d
}

// loanOf asks for a device, for a pod of the name.
func loanOf(address, pod string, mac net.HardwareAddr) engine.Loan {
	return engine.Loan{
		Attachment: engine.Attachment{
			AttachmentID: engine.AttachmentID{ContainerID: pod + "0123456789abcdef", IfName: "net1"},
			Pod:          engine.Pod{Namespace: "default", Name: pod}, Netns: engine.Netns{Path: "/run/netns/" + pod},
		},
		Device: address, HardwareAddr: mac,
	}
}

// at is all of a device that must be as it was.
type at struct {
	Driver, Override, MAC string
	Namespaces, Journal   string
}

func (w *world) at(address string) at {
	w.t.Helper()
	h, err := sriov.Open(sriov.Config{Root: w.tree.Root})
	must(w.t, err)
	override, err := h.Override(address)
	must(w.t, err)
	files, err := os.ReadDir(filepath.Join(w.dir, "borrowed"))
	must(w.t, err)
	var entries []string
	for _, f := range files {
		entries = append(entries, f.Name())
	}
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	vf := numbers[address]
	return at{h.Driver(address), override, w.net.macs["eth1"][vf].String(),
		strings.Join(slices.Sorted(maps.Keys(w.net.namespaces)), " "), strings.Join(entries, " ")}
}

// untouched is how both devices stand before and after.
func untouched(mac net.HardwareAddr) at { return at{Driver: "vfio-pci", MAC: mac.String()} }

func (w *world) expect(address string, want at) {
	w.t.Helper()
	if got := w.at(address); got != want {
		w.t.Errorf("%s is %+v, want %+v; changes: %q; log:\n%s", address, got, want, w.done(), w.log)
	}
}

// fakeNetwork is the network stack of a world: interfaces come and go with the
// drivers of its devices.
type fakeNetwork struct {
	w       *world
	changed chan struct{}

	mu         sync.Mutex
	next       int
	links      map[int]*fakeLink
	namespaces map[string]bool
	macs       map[string]map[int]net.HardwareAddr
	up         bool
	late       bool // the interface comes after the probe has returned
	silent     bool // no interface comes at all
}

type fakeLink struct {
	device, name, namespace string
	mac                     net.HardwareAddr
	up                      bool
}

func (n *fakeNetwork) bound(address, driver string) (string, int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if address == pf {
		return "eth1", 2
	}
	n.next++
	index := 100 + n.next
	l := &fakeLink{device: address, name: fmt.Sprintf("eth%d", 4+n.next), mac: hw(fmt.Sprintf("02:00:00:00:99:%02x", n.next))}
	if set := n.macs["eth1"][numbers[address]]; !isZero(set) {
		l.mac = set
	}
	if n.silent {
		return "", 0
	}
	n.links[index] = l
	tell := func() {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
	if n.late {
		time.AfterFunc(50*time.Millisecond, func() {
			n.w.tree.Appear(address, l.name, index)
			tell()
		})
		return "", 0
	}
	tell()
	return l.name, index
}

func (n *fakeNetwork) unbound(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.links, func(_ int, l *fakeLink) bool { return l.device == address })
}

// of is the interface of a device; nil: none.
func (n *fakeNetwork) of(address string) *fakeLink {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		if l.device == address {
			c := *l
			return &c
		}
	}
	return nil
}

func (n *fakeNetwork) Physical(ifname string) (physical, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.macs[ifname] == nil {
		return physical{}, unix.ENODEV
	}
	return physical{Up: n.up, MAC: macPF, MACs: maps.Clone(n.macs[ifname])}, nil
}

func (n *fakeNetwork) SetMAC(ifname string, vf int, mac net.HardwareAddr) error {
	if err := n.w.op("mac"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.macs[ifname][vf] = mac
	return nil
}

func (n *fakeNetwork) Watch() (<-chan struct{}, func(), error) { return n.changed, func() {}, nil }

func (n *fakeNetwork) MakeNamespace(path string) (uint64, error) {
	if err := n.w.op("make namespace"); err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.namespaces[path] {
		return 0, unix.EEXIST
	}
	n.namespaces[path] = true
	return 77, nil
}

func (n *fakeNetwork) RemoveNamespace(path string) error {
	n.mu.Lock()
	there := n.namespaces[path]
	n.mu.Unlock()
	if !there {
		return nil
	}
	if err := n.w.op("remove namespace"); err != nil {
		return err
	}
	n.end(path)
	return nil
}

// end ends a namespace: what is in it comes back to the node's.
func (n *fakeNetwork) end(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.namespaces, path)
	for index, l := range n.links {
		if l.namespace == path {
			l.namespace, l.up = "", false
			n.w.tree.Appear(l.device, l.name, index)
		}
	}
}

func (n *fakeNetwork) Move(index int, namespace, name string, mac net.HardwareAddr) error {
	if err := n.w.op("move"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[index]
	if l == nil || !n.namespaces[namespace] {
		return unix.ENODEV
	}
	if !bytes.Equal(l.mac, mac) && !isZero(n.macs["eth1"][numbers[l.device]]) {
		return fmt.Errorf("it has MAC %s and does not take %s: %w", l.mac, mac, unix.EPERM)
	}
	l.namespace, l.name, l.mac, l.up = namespace, name, mac, true
	n.w.tree.Moved(l.device, index)
	return nil
}

func (n *fakeNetwork) Elsewhere(_ context.Context, address, except string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		if l.device == address && l.namespace != "" && l.namespace != except {
			return l.namespace, nil
		}
	}
	return "", nil
}

// hold makes a process that has a file of /dev open.
func (w *world) hold(pid int, comm, node string) {
	w.t.Helper()
	p := "proc/" + strconv.Itoa(pid)
	must(w.t, w.tree.Put(p+"/comm", comm+"\n"))
	must(w.t, os.MkdirAll(filepath.Join(w.tree.Root, p, "fd"), 0o755))
	must(w.t, os.Symlink("/dev/"+node, filepath.Join(w.tree.Root, p, "fd/9")))
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// eventually waits for a condition that nothing tells of.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(limit) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// host is the host as an operator changes it.
func host(w *world) *sriov.Host {
	h, err := sriov.Open(sriov.Config{Root: w.tree.Root, Write: w.tree.Write})
	must(w.t, err)
	return h
}
