package dhcp4

import (
	"math/rand/v2"
	"time"
)

// The delays of RFC 2131, 4.1: 4, 8, 16, 32 and 64 seconds, each changed by a
// random part of one second up or down, then 64 again and again.
const (
	firstDelay = 4 * time.Second
	lastDelay  = 64 * time.Second
	jitter     = time.Second
)

// How often something is asked before the machine does something else.
const (
	// requestTries bounds REQUESTING: REQUESTs at 0, 4 and 12 s, given up at 28 s.
	// RFC 2131, 3.1 number 5, speaks of 60 s; but the ADD that waits for the
	// address ends after 110 s, and a server that offers and then falls silent
	// shall not take all of it.
	requestTries = 3
	// rebootTries bounds REBOOTING: REQUESTs at 0 and 4 s, given up at 12 s.
	// Silence is a normal answer here, and a quick one is owed to whoever waits:
	// a server that does not know the client must not answer (RFC 2131, 4.3.2).
	rebootTries = 2
)

// refusedWait is how long the machine stays in INIT after an ACK that it could
// not use and gave back: what RFC 2131, 3.1 number 5, asks for after a DECLINE,
// for the same reason, a server that would do the same again at once.
const refusedWait = 10 * time.Second

// conflictLimit bounds the wait after conflicts in a row: RATE_LIMIT_INTERVAL of
// RFC 5227, 1.1.
const conflictLimit = 60 * time.Second

// The bounds of the tries in RENEWING and REBINDING. minRenewDelay is RFC 2131,
// 4.4.5. shortRenewDelay is for leases too short for it: a server needs some
// time for an answer.
const (
	minRenewDelay   = 60 * time.Second
	shortRenewDelay = 250 * time.Millisecond
)

// conflictWait returns how long INIT lasts after conflict number n in a row, counted
// from 1: 10 s (RFC 2131, 3.1 number 5), 20 s, 40 s, and then what RFC 5227, 2.1.1,
// asks of a host that meets many conflicts.
func conflictWait(n int) time.Duration {
	if n > 3 {
		return conflictLimit
	}
	return refusedWait << (n - 1)
}

// retransmitDelay returns how long to wait for an answer after message number n,
// counted from 1.
func retransmitDelay(r *rand.Rand, n int) time.Duration {
	d := lastDelay
	if n < 5 {
		d = firstDelay << (n - 1)
	}
	return d - jitter + time.Duration(r.Int64N(int64(2*jitter)+1))
}

// renewDelay returns how long to wait for an answer in RENEWING or REBINDING:
// half of the rest of the state's time, but 60 s at least (RFC 2131, 4.4.5). A
// whole state shorter than four minutes would end with one or two tries by that
// rule (B23), so there the least wait is a quarter of it, which makes three. A
// try just before the end is left out: the next state asks anyway.
func renewDelay(rest, whole time.Duration) time.Duration {
	least := max(min(minRenewDelay, whole/4), shortRenewDelay)
	d := max(rest/2, least)
	if rest-d < least/2 {
		return rest
	}
	return d
}
