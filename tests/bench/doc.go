// Package bench measures what dhcp-meta costs, with the real programs and a real
// dnsmasq in the laboratory: `make bench`. Figures that depend on the machine are
// given as ratios to something that ran beside them: the server's own answer
// time, an empty program. docs/performance.md tells what came out; the race with the
// reference dhcp daemon is in tests/peers.
package bench
