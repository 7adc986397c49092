// Package nic is the engine's hand on the kernel: it implements engine.Links
// and engine.Port with network namespaces, rtnetlink and packet sockets.
//
// # What it promises
//
// A namespace is entered by a thread that is locked for the moment, and only to
// open sockets; a socket belongs to the namespace in which it was opened, so
// all work goes on from ordinary goroutines. At most a handful of threads is
// inside at a time, however many attachments there are, and a thread that
// cannot get back home is never used again.
//
// Nothing outlives a call: no descriptor, no goroutine, no thread. The
// exceptions are a Port, which holds two packet sockets and two goroutines, and
// a Tally with one of each, until Close. An open socket keeps a dead namespace
// alive, and no read error tells of it, so a Port is for one exchange only.
// Defend is a call that lasts: while it does, it holds a socket.
//
// The host's own namespace, and every path that is not a network namespace
// below an allowed root, is refused before anything is entered.
//
// What is on an interface is changed only where this package has put it: our
// routes are those with protocol RTPROT_DHCP on the interface that carry the
// leased address as preferred source. Of others, none is overwritten.
//
// It needs Linux 5.14 (SO_NETNS_COOKIE), CAP_SYS_ADMIN to enter namespaces,
// CAP_NET_ADMIN and CAP_NET_RAW inside them.
package nic
