package dhcp4

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// Config is what a machine is told of its client. All of it stays the same for
// the life of the machine.
type Config struct {
	// HardwareAddr is chaddr, six bytes.
	HardwareAddr net.HardwareAddr
	// ClientID is the value of option 61, its type octet included; empty: the
	// option is not sent. The same bytes go into every message (RFC 2131, 4.2).
	ClientID []byte
	// Hostname is option 12 and VendorClass option 60; empty: not sent.
	Hostname    string
	VendorClass string
	// Request are option codes to ask for besides the machine's own list.
	Request []uint8
	// Options are further options for DISCOVER and REQUEST.
	Options []Option
	// Broadcast sets the BROADCAST flag (RFC 2131, 4.1), for interfaces that
	// cannot get a unicast frame before they have an address.
	Broadcast bool
	// Servers is the list of server identifiers that may be listened to; empty:
	// all.
	Servers []netip.Addr
	// Address is an address to wish for in DISCOVER (option 50); may be zero.
	Address netip.Addr
	// MTU of the link in bytes, for option 57; 0 means 1500.
	MTU int
	// Rand gives transaction ids and jitter; it must not be nil.
	Rand *rand.Rand
}

// Option is an option as it goes on the wire.
type Option struct {
	Code  uint8
	Value []byte
}

// State is a state of RFC 2131, figure 5.
type State uint8

// The states. REBOOTING stands for INIT-REBOOT too: the machine leaves
// INIT-REBOOT within the step that enters it.
const (
	Init State = iota
	Selecting
	Requesting
	Rebooting
	Bound
	Renewing
	Rebinding
	Stopped
)

// Machine is the DHCP client of one interface. It is not safe for concurrent
// use.
type Machine struct {
	cfg Config
}

// New returns a machine in INIT that does nothing before Start or Resume.
func New(cfg Config) *Machine { return &Machine{cfg: cfg} }

// Step takes an event and returns what is to be done about it, in order.
func (m *Machine) Step(now time.Time, ev Event) []Action { panic("dhcp4: contract only") }

// Deadline is when Step(now, Elapsed{}) has to be called next; the zero time
// means never.
func (m *Machine) Deadline() time.Time { panic("dhcp4: contract only") }

// State returns the state.
func (m *Machine) State() State { panic("dhcp4: contract only") }

// Lease returns the lease that may be used now.
func (m *Machine) Lease() (Lease, bool) { panic("dhcp4: contract only") }
