// Package boot is the time and the name of one run of the kernel. Leases are
// kept in its time, which no administrator and no NTP daemon can change, and
// which goes on while the machine sleeps, as the lease at the server does.
package boot

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const idPath = "/proc/sys/kernel/random/boot_id"

// ID returns the name of this boot, a UUID. Times of this package and cookies of
// network namespaces mean nothing in another one.
func ID() (string, error) {
	b, err := os.ReadFile(idPath)
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("read the boot id: %s is empty", idPath)
	}
	return id, nil
}

// Now is the time since the boot (CLOCK_BOOTTIME) as a time.Time that counts
// from 1970: comparing and adding work as always, the date means nothing. It has
// no monotonic reading, so it stays the same when it is stored and read back.
func Now() time.Time {
	var ts unix.Timespec
	// Cannot fail: the clock exists since Linux 2.6.39 and the pointer is good.
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("boot: read CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Unix(0, ts.Nano())
}

// Wall returns the date and time, as the clock on the wall is set now, of a time
// of this boot.
func Wall(t time.Time) time.Time { return time.Now().Add(t.Sub(Now())).Round(0) }
