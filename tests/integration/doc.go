// Package integration proves the main job with the real programs, real CNI
// plugins and real DHCP servers. Tests named after a field case (TestB30...) are
// listed with the public report behind it in docs/coverage.md. They assert on
// what the server saw and holds, not only on what the programs print.
package integration
