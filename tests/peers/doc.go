// Package peers races the reference dhcp daemon of the CNI project: both daemons live
// side by side, each with a node, a server and pods of its own, and take their turns at
// the same work. `make bench-peers` runs the whole race and rewrites the section of
// docs/performance.md between its two markers, and docs/peers.svg. Without that the
// tests run it with a few pods, and assert nothing that a clock has told.
package peers
