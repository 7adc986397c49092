package dhcp4

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Config is what a machine is told of its client. All of it stays the same for
// the life of the machine, which shares the slices with its messages.
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
	// Require are option codes to ask for without which an offer is none, nor is the
	// first ACK. A lease that is in use is not given up for them.
	Require []uint8
	// Options are further options for DISCOVER and REQUEST. They cannot replace
	// what the machine itself says; see reserved. One of more than 255 bytes is left
	// out: it would have to be sent in parts (RFC 3396), which few servers join.
	Options []Option
	// Broadcast sets the BROADCAST flag (RFC 2131, 4.1), for interfaces that
	// cannot get a unicast frame before they have an address.
	Broadcast bool
	// Servers is the list of server identifiers that may be listened to; empty:
	// all. DenyServers are never listened to, not even when Servers names them.
	Servers, DenyServers []netip.Addr
	// Probe has each address checked before its first use: see Probe and Probed.
	Probe bool
	// RapidCommit asks for an ACK in answer to the DISCOVER (RFC 4039); a server
	// may still make an OFFER. Where several servers grant it, all but the first
	// hold a lease that nobody uses.
	RapidCommit bool
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

// Machine is the DHCP client of one interface. It is not safe for concurrent
// use.
type Machine struct {
	cfg   Config
	state State
	// deadline is the only timer; the zero time means never.
	deadline time.Time

	// lease counts while held is true.
	lease Lease
	held  bool
	// claim is an address that was asked for and that no server has refused, or
	// that was given and is not in use yet; zero: none. A server may hold a lease
	// for it. remarks are those of its ACK, in PROBING.
	claim   Lease
	remarks []string
	// wish is an address that was lost without a server's word against it; avoid is
	// one that another host uses.
	wish, avoid netip.Addr

	// xid is the transaction, tries the messages that were sent in the state.
	xid   dhcpv4.TransactionID
	tries int
	// asked and last are when the first and the latest message of the transaction
	// was sent that may be answered by an ACK.
	asked, last time.Time
	// begun is when acquisition or renewal began; secs is what the latest
	// DISCOVER said of that.
	begun time.Time
	secs  uint16
	// whole is the time that RENEWING or REBINDING had when it was entered.
	whole time.Duration
	// refusals counts NAKs, unusable ACKs and conflicts since the last lease,
	// conflicts those alone since a lease that lasted until its renewal.
	refusals, conflicts int
}

// New returns a machine in INIT that does nothing before Start or Resume.
func New(cfg Config) *Machine { return &Machine{cfg: cfg} }

// Step takes an event and returns what is to be done about it, in order; nil
// when there is nothing. now must not run backwards from one Step to the next.
func (m *Machine) Step(now time.Time, ev Event) []Action {
	switch ev := ev.(type) {
	case Start:
		if m.fresh() {
			return m.start(now, ev.Previous)
		}
	case Resume:
		if m.fresh() {
			return m.resume(now, ev.Lease)
		}
	case Elapsed:
		if !m.deadline.IsZero() && !now.Before(m.deadline) {
			return m.step(now, ev)
		}
	case Received:
		acts := m.catchUp(now)
		r, no := m.vet(ev)
		if no != nil {
			return append(acts, *no)
		}
		return append(acts, m.step(now, r)...)
	case Renew, Probed:
		return m.step(now, ev)
	case Conflict:
		return m.conflicted(now, ev.Owner)
	case Stop:
		return m.stop(now, ev.Release)
	}
	return nil
}

// Deadline is when Step(now, Elapsed{}) has to be called next; the zero time
// means never. After that call it is later than now.
func (m *Machine) Deadline() time.Time { return m.deadline }

// State returns the state.
func (m *Machine) State() State { return m.state }

// Lease returns the lease that may be used now: the one last given by Use, until
// Drop or Stop.
func (m *Machine) Lease() (Lease, bool) {
	if !m.held {
		return Lease{}, false
	}
	return m.lease, true
}

// Claim returns what a server may hold for the client although it is not in use:
// what was asked for and not refused, or given and not yet checked. With the lease
// in use it is all that there is to give back; Stop with Release does so.
func (m *Machine) Claim() (Lease, bool) {
	return m.claim, m.claim.Addr.IsValid()
}

// fresh tells whether neither Start nor Resume has come yet. An INIT that waits
// has a deadline.
func (m *Machine) fresh() bool { return m.state == Init && m.deadline.IsZero() }

// catchUp lets a lease end whose time is over when a message comes before Elapsed:
// no ACK brings back a lease after its expiry.
func (m *Machine) catchUp(now time.Time) []Action {
	if m.held && m.lease.Expired(now) {
		return m.expire(now)
	}
	return nil
}
