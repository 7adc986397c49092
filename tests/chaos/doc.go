// Package chaos lets everything go wrong at once for a while, and then asks whether
// server, engine and interfaces agree. What happens when is drawn from a seed, which
// is printed and can be set; which packet is lost or doubled is the kernel's dice.
//
// TestChaos is part of `make test`, TestSoak is `make soak`.
package chaos
