package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// cluster is what the API server of a world says; it is changed under its lock.
type cluster struct {
	none   bool // there is no cluster
	ovn    bool
	nad    string
	dhcp   json.RawMessage // what NAD and pod make of the caller's object; nil: the same
	mac    net.HardwareAddr
	guest  string // what a VM's guest is called
	err    error  // of Facts
	away   bool   // nothing can be asked
	asked  int
	gone   map[Pod]bool
	ending map[Pod]bool
	spared int // questions whether a pod is ending that come before it is
	marked map[string]bool
	owners map[string]Pod // of interfaces whose callers name no pod, by MAC
	tell   func(Pod)
}

var errAway = errors.New("dial tcp 10.96.0.1:443: connect: connection refused")

// kubernetes is the Cluster of a world.
type kubernetes struct{ *world }

var _ Cluster = kubernetes{}

func (k kubernetes) Facts(_ context.Context, a Attachment) (Facts, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := &k.cluster
	c.asked++
	switch {
	case c.away:
		return Facts{}, api.WithCode(api.CodeTryAgain, errAway)
	case c.err != nil:
		return Facts{}, c.err
	case c.gone[a.Pod]:
		return Facts{}, ErrNoPod
	}
	f := Facts{Workload: k.workload, DHCP: a.DHCP, OVN: c.ovn, NAD: c.nad, Hostname: c.guest, HardwareAddr: c.mac}
	if c.dhcp != nil {
		f.DHCP = c.dhcp
	}
	return f, nil
}

func (k kubernetes) Owner(_ context.Context, _ Attachment, mac net.HardwareAddr) (Pod, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pod, ok := k.cluster.owners[mac.String()]
	switch {
	case k.cluster.away:
		return Pod{}, "", errAway
	case !ok:
		return Pod{}, "", ErrNoPod
	}
	return pod, "shop/lan", nil
}

func (k kubernetes) Marked(_ context.Context, nad string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cluster.away {
		return false, errAway
	}
	return k.cluster.marked[nad], nil
}

func (k kubernetes) Gone(ctx context.Context, pod Pod) (bool, error) {
	k.mu.Lock()
	away, gone := k.cluster.away, k.cluster.gone[pod]
	k.mu.Unlock()
	if away {
		<-ctx.Done()
		return true, fmt.Errorf("%w: %w", errAway, context.Cause(ctx))
	}
	return gone, nil
}

func (k kubernetes) Ending(pod Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cluster.spared > 0 {
		k.cluster.spared--
		return false
	}
	return k.cluster.ending[pod] && !k.cluster.gone[pod]
}

func (k kubernetes) Watch(ctx context.Context, changed func(Pod)) error {
	k.change(func() { k.cluster.tell = changed })
	<-ctx.Done()
	return nil
}

// deletePod removes a pod from the API; with told, the watch says so.
func (w *world) deletePod(pod Pod, told bool) {
	w.mu.Lock()
	if w.cluster.gone == nil {
		w.cluster.gone = make(map[Pod]bool)
	}
	w.cluster.gone[pod] = true
	tell := w.cluster.tell
	w.mu.Unlock()
	if told {
		tell(pod)
	}
}

// endPod begins the deletion of a pod.
func (w *world) endPod(pod Pod) {
	w.mu.Lock()
	w.cluster.ending = map[Pod]bool{pod: true}
	tell := w.cluster.tell
	w.mu.Unlock()
	tell(pod)
}

// devices are the PCI devices of a world: each is a space that is at the path
// "vf/<address>" while it is borrowed.
type devices struct {
	w  *world
	mu sync.Mutex
	// vfio has the MACs of the devices on vfio-pci.
	vfio      map[string]net.HardwareAddr
	away      map[string]bool // borrowed, and not given back
	lent      map[string]bool // those of them that a running ADD has
	loans     int
	takes     time.Duration
	borrowErr error
	returnErr func(try int) error
	healErr   error
	touched   []string
}

var _ Devices = (*devices)(nil)

func (d *devices) touch(what string) {
	d.touched = append(d.touched, what)
	d.w.change(func() { d.w.note("%s", what) })
}

func (d *devices) Inspect(_ context.Context, address string) (Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.vfio[address]; ok {
		return Device{Address: address, Driver: "vfio-pci", VFIO: true}, nil
	}
	if d.away[address] {
		return Device{Address: address, Driver: "igbvf"}, nil
	}
	return Device{}, fmt.Errorf("no device %s", address)
}

func (d *devices) Borrow(ctx context.Context, l Loan) (Borrowed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.borrowErr != nil {
		return nil, d.borrowErr
	}
	mac, ok := d.vfio[l.Device]
	if !ok {
		return nil, fmt.Errorf("device %s is not on vfio-pci", l.Device)
	}
	select {
	case <-time.After(d.takes):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l.HardwareAddr != nil {
		mac = l.HardwareAddr
	}
	delete(d.vfio, l.Device)
	if d.away == nil {
		d.away, d.lent = map[string]bool{}, map[string]bool{}
	}
	d.away[l.Device], d.lent[l.Device] = true, true
	d.loans++
	s := d.w.space("vf/"+l.Device, mac[5])
	d.w.change(func() { s.link.HardwareAddr = mac })
	d.touch("borrow")
	return &borrowed{d: d, address: l.Device, mac: mac, target: Target{Netns: s.link.Netns, IfName: "vf"}}, nil
}

func (d *devices) Heal(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.healErr != nil {
		return d.healErr
	}
	for address := range d.away {
		d.giveBack(address, net.HardwareAddr{2, 0, 0, 0, 0, 1})
		d.touch("heal")
	}
	return nil
}

func (d *devices) HealDevice(_ context.Context, address string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.away[address], d.lent[address]:
		return nil
	case d.healErr != nil:
		return d.healErr
	}
	d.giveBack(address, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	d.touch("heal")
	return nil
}

// giveBack is called with the lock held.
func (d *devices) giveBack(address string, mac net.HardwareAddr) {
	delete(d.away, address)
	delete(d.lent, address)
	d.vfio[address] = mac
	d.w.change(func() {
		for _, p := range d.w.spaces["vf/"+address].ports {
			if !p.closed {
				d.w.t.Errorf("device %s goes back with a port open", address)
			}
		}
		delete(d.w.spaces, "vf/"+address)
	})
}

type borrowed struct {
	d       *devices
	address string
	mac     net.HardwareAddr
	target  Target
	tries   int
	back    bool
}

func (b *borrowed) Target() Target { return b.target }

func (b *borrowed) Return(context.Context) error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.back {
		return nil
	}
	b.tries++
	if f := b.d.returnErr; f != nil {
		if err := f(b.tries); err != nil {
			b.d.touch("return fails")
			return err
		}
	}
	b.d.giveBack(b.address, b.mac)
	b.back = true
	b.d.touch("return")
	return nil
}
