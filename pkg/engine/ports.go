package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// ErrGone is returned by Links when the network namespace or the interface is
// no longer there, or when another namespace stands at its path now. What is
// left of the attachment then is its record.
var ErrGone = errors.New("network namespace or interface is gone")

// Links is what the engine asks of the kernel. Every call is one short visit to
// the namespace of the target; no call leaves a thread, a socket or a
// descriptor behind, except that a Port is open until Close. All are safe for
// concurrent use. A target whose Netns.Cookie is not 0 must be the namespace
// with that cookie, otherwise ErrGone.
type Links interface {
	// Inspect tells of the interface without changing it; of the namespace alone
	// when t.IfName is empty. It refuses a path that is no network namespace, is
	// not below an allowed root, or is the host's own namespace.
	Inspect(ctx context.Context, t Target) (Link, error)
	// SetHardwareAddr gives the interface another MAC.
	SetHardwareAddr(ctx context.Context, t Target, mac net.HardwareAddr) error
	// Routes returns the destinations to which the namespace has routes that are
	// not the engine's for this interface.
	Routes(ctx context.Context, t Target) ([]netip.Prefix, error)
	// Open brings the interface up, waits for its carrier as long as ctx
	// allows, and opens it for DHCP.
	Open(ctx context.Context, t Target) (Port, error)
	// Configure makes the interface carry want, which expires in lifetime
	// (dhcp4.Infinite: never), in place of have, which an earlier Configure put
	// there (zero: nothing). What both share stays without a gap, the rest of
	// have goes before the rest of want comes. It may be repeated, also after a
	// crash half way.
	Configure(ctx context.Context, t Target, have, want Setup, lifetime time.Duration) error
	// Clear takes away what Configure put there. What is gone already is no
	// error; neither is ErrGone.
	Clear(ctx context.Context, t Target, have Setup) error
	// Strip takes addresses off the interface that somebody else put there, with
	// their routes, and returns those that it took; without a list all IPv4
	// addresses. What is not there is no error.
	Strip(ctx context.Context, t Target, addrs []netip.Prefix) ([]netip.Prefix, error)
	// Verify tells what of want is missing from the interface, in words; nil
	// when all is there.
	Verify(ctx context.Context, t Target, want Setup) error
	// Defend watches over an address of the interface (RFC 5227, 2.4) until ctx
	// ends, which is no error. An AddressConflict says that another host will not
	// give it up; ErrGone that there is nothing left to defend. It holds a socket,
	// and with it the namespace.
	Defend(ctx context.Context, t Target, addr netip.Addr) error
	// Watch sends the path of a namespace below one of the allowed roots when it
	// has ended, until ctx is done; then it returns nil.
	Watch(ctx context.Context, ended func(path string)) error
}

// Link is what Inspect sees.
type Link struct {
	// Netns is the target's namespace with its cookie filled in.
	Netns        Netns
	HardwareAddr net.HardwareAddr
	// MTU in bytes.
	MTU int
	// Kind is the kernel's name of the device type: "veth", "macvlan".
	Kind string
}

// Port is an interface that is open for DHCP. It keeps its namespace alive, so
// it is open for the time of one exchange only. It is used by one goroutine.
type Port interface {
	// Received is the stream of DHCP replies to this interface's hardware
	// address. It is closed when the port is closed or the interface has gone.
	Received() <-chan dhcp4.Received
	// Send puts a message on the wire. A unicast one waits for the ARP answer
	// of its next hop, for a second or so; an error says that it was not sent.
	Send(ctx context.Context, s dhcp4.Send) error
	// Probe looks whether another host uses addr, which is not configured yet
	// (RFC 5227, 2.1): with full as long as the RFC says, otherwise for a moment
	// that a waiting pod can bear. It returns the other host's hardware address;
	// empty when the address is free.
	Probe(ctx context.Context, addr netip.Addr, full bool) (net.HardwareAddr, error)
	// Announce tells all hosts on the link once that addr is here (RFC 5227, 2.3).
	Announce(ctx context.Context, addr netip.Addr) error
	Close() error
}

// Store keeps the records. Safe for concurrent use; calls for one attachment
// come one after another.
type Store interface {
	// Load returns all readable records. A corrupt one is moved aside, reported
	// to the log, and is no error.
	Load() ([]Record, error)
	// Put makes the record durable before it returns. An error means that the
	// old record, or none, is still there.
	Put(Record) error
	// Delete forgets a record and what Ended says of it; an unknown one is no
	// error.
	Delete(AttachmentID) error
	// Ended returns the attachments whose DEL found no engine, or none that
	// answered, by the notes that it left; ForgetEnded drops one, WatchEnded tells
	// of new ones until ctx ends, which is no error.
	Ended() ([]AttachmentID, error)
	ForgetEnded(AttachmentID) error
	WatchEnded(ctx context.Context, ended func(AttachmentID)) error
	// Passed returns the attachments that the plugin let pass because no engine told
	// it whether their network is ours, by the notes that it left; ForgetPassed
	// drops one, WatchPassed tells of new ones until ctx ends, which is no error.
	Passed() ([]api.Request, error)
	ForgetPassed(AttachmentID) error
	WatchPassed(ctx context.Context, passed func(AttachmentID)) error
	// Check tells whether a Put would work now.
	Check() error
}
