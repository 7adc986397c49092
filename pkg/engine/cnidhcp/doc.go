// Package cnidhcp speaks the language of the reference dhcp daemon, so that the
// IPAM plugin "dhcp" of the CNI project, unchanged, gets its leases from this
// engine: net/rpc with gob over HTTP CONNECT on a unix socket, service DHCP with the
// methods Allocate and Release.
//
// The language knows neither versions nor cancellation. A plugin makes a connection
// for each call, and the end of that connection is taken for the end of its caller:
// the ADD is given up then. Whatever a request holds is answered; none ends the
// engine or waits for ever.
package cnidhcp
