// Package bench measures what dhcp-meta costs, with the real programs and a real
// dnsmasq in the laboratory: `make bench`. Figures that depend on the machine are
// given as ratios to something that ran beside them: the server's own answer
// time, an empty program, the reference dhcp daemon. docs/performance.md tells
// what came out.
package bench
