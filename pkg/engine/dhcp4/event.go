package dhcp4

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// An Event is something that happened outside the machine: Start, Resume,
// Received, Elapsed, Probed, Conflict, Renew or Stop.
type Event interface{ event() }

// Start begins in INIT. With Previous, a lease that an earlier life of the same
// client held, it begins in INIT-REBOOT instead (RFC 2131, 3.2): the address is
// asked for again, and is not used before an ACK. When no server answers, the
// machine goes on to INIT.
type Start struct {
	Previous *Lease
}

// Resume goes on with a lease whose address is on the interface already, as
// after a restart of the engine. Before T1 the machine is BOUND at once and
// sends nothing; past T1 it verifies the lease by INIT-REBOOT, and when no
// server answers it goes on to use the lease for the rest of its time (RFC
// 2131, 3.2 number 4). An expired lease is dropped.
type Resume struct {
	Lease Lease
}

// Received is a message from the wire. The machine decides whether it is meant
// for it; the caller filters for economy only.
type Received struct {
	Msg *dhcpv4.DHCPv4
	// From is the source address of the IP datagram.
	From netip.Addr
	// Err says that a reply came which Decode could not read; Msg is nil then.
	Err error
}

// Elapsed says that the time of Deadline has come. Before that time it does
// nothing.
type Elapsed struct{}

// Probed answers Probe. It does nothing outside PROBING: the caller gives up a
// check whose state was left, and does not take its result for that of a later
// Probe.
type Probed struct {
	// Owner is the hardware address of another host that uses the address; empty:
	// none was seen, the address is free.
	Owner net.HardwareAddr
}

// Conflict says that another host uses the address of the lease that is in use,
// and that the caller does not defend it any longer (RFC 5227, 2.4). The lease is
// dropped and declined. It does nothing while there is no such lease.
type Conflict struct {
	// Owner is the hardware address of the other host.
	Owner net.HardwareAddr
}

// Renew asks for the lease to be renewed now, as if T1 had come. Before T1
// nothing is lost when nobody answers: after three tries the machine is BOUND
// again. In RENEWING and REBINDING it does not wait for the next try. It does
// nothing in other states.
type Renew struct {
	// Rebind asks all servers instead, as if T2 had come, also in RENEWING, where
	// the server of the lease may not answer.
	Rebind bool
}

// Stop ends the machine. With Release a held lease is given back by a
// DHCPRELEASE (RFC 2131, 4.4.6), and so is an address that was claimed and that
// no server has given or refused yet. Without Release there is no action: the
// lease stays valid for its time, and is the caller's to remember.
type Stop struct {
	Release bool
}

func (Start) event()    {}
func (Resume) event()   {}
func (Received) event() {}
func (Elapsed) event()  {}
func (Probed) event()   {}
func (Conflict) event() {}
func (Renew) event()    {}
func (Stop) event()     {}

// An Action is what the caller has to do after a Step: Claim, Send, Probe, Use,
// Drop or Ignore, in the order in which they come.
type Action interface{ action() }

// Claim comes before the first Send of a REQUEST for an offered address. The
// caller makes it durable before it sends: from then on a server may hold a
// lease, and only who remembers the claim can give it back after a crash. If it
// cannot be made durable, the caller does not send, and stops the machine.
type Claim struct {
	// Lease is what the OFFER promised. It is no lease yet and must not be
	// used; Release makes the message that gives it back.
	Lease Lease
}

// Send is a message to be put on the wire; it is not to be changed. Its IP source address is
// Msg.ClientIPAddr (ciaddr): 0.0.0.0 before an address is held, the leased
// address in RENEWING, REBINDING and for RELEASE.
type Send struct {
	Msg *dhcpv4.DHCPv4
	// To is the IP destination; the zero Addr means 255.255.255.255.
	To netip.Addr
	// Via is the address to ask for by ARP when To is valid: the next hop that
	// the lease's own routes give, or To itself when it is on the link. It does
	// not depend on the routing table of the namespace.
	Via netip.Addr
}

// Probe asks whether another host uses an address that a server has just given
// (RFC 2131, 4.4.1; RFC 5227, 2.1). The caller looks, and answers with Probed; it
// leaves out the client itself and whoever answers for it. The address is not to
// be configured before Use. Probe comes only where Config.Probe is set.
type Probe struct {
	// Lease is what the ACK gave; it may not be used yet. The server holds it for
	// the client, so Stop with Release gives it back.
	Lease Lease
}

// Use says that the lease is valid now: after an ACK, after Probed or after
// Resume. A renewed lease comes as a new Use.
type Use struct {
	// Lease shares its slices with the machine; they are not to be changed.
	Lease Lease
	// Remarks are what the ACK held and could not be used, for the log: a
	// malformed option 121, senseless timers.
	Remarks []string
}

// Drop says that the lease last given by Use must not be used any longer.
type Drop struct {
	Lease  Lease
	Reason Reason
	// Detail is what the server said of it, for the log; may be empty.
	Detail string
}

// Ignore says that a message gave no lease, and why: it was not meant for the
// client, could not be used, or refused an address that was not held yet (a NAK
// in REQUESTING). It is for counters, debug logs and the error of an ADD that got
// no address, and asks for nothing.
type Ignore struct {
	Msg  *dhcpv4.DHCPv4
	From netip.Addr
	// Server is the server identifier; the zero Addr when there is no valid one, or
	// the message was left aside before anybody looked at it.
	Server netip.Addr
	Kind   Kind
	Reason string
}

// Kind is why a message was left aside, in few words that can label a metric.
type Kind string

// The kinds of an Ignore.
const (
	KindDenied       Kind = "denied server"     // Config.Servers or Config.DenyServers forbids it
	KindServer       Kind = "other server"      // another one was chosen or asked
	KindState        Kind = "state"             // no answer, or not this one, is awaited in the state
	KindMalformed    Kind = "malformed"         // bytes that are no message
	KindType         Kind = "type"              // no message of DHCP for a client
	KindHardwareAddr Kind = "hardware address"  // another client's
	KindTransaction  Kind = "transaction"       // another transaction's, or an older one's
	KindClientID     Kind = "client identifier" // another client's, by option 61
	KindOptions      Kind = "options"           // no server, mask or lease time in it, or none that can be used
	KindRefusal      Kind = "refusal"           // a NAK, or what counts as one, of an address not held yet
)

func (Claim) action()  {}
func (Send) action()   {}
func (Probe) action()  {}
func (Use) action()    {}
func (Drop) action()   {}
func (Ignore) action() {}

// Reason is why a lease was dropped.
type Reason string

// The reasons of a Drop.
const (
	Nak        Reason = "nak"      // the server took it back
	Expired    Reason = "expired"  // its time ran out
	Released   Reason = "released" // Stop with Release
	Conflicted Reason = "conflict" // another host uses the address
)
