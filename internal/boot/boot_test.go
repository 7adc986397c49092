package boot

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestID(t *testing.T) {
	id, err := ID()
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
		t.Errorf("id %q is no UUID", id)
	}
	again, err := ID()
	if err != nil || again != id {
		t.Errorf("second id is %q (%v), the first %q", again, err, id)
	}
}

// TestNow holds the clock against the kernel's own account of the same time.
func TestNow(t *testing.T) {
	uptime := func() time.Time {
		b, err := os.ReadFile("/proc/uptime")
		if err != nil {
			t.Fatal(err)
		}
		s, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Unix(0, int64(s*1e9))
	}
	before, now, after := uptime(), Now(), uptime()
	const tick = 10 * time.Millisecond // the kernel's file has two decimals
	if now.Before(before.Add(-tick)) || now.After(after.Add(tick)) {
		t.Errorf("Now is %v, /proc/uptime was %v before and %v after", now.UnixNano(), before.UnixNano(), after.UnixNano())
	}
}

func TestWall(t *testing.T) {
	before := time.Now().Round(0)
	got := Wall(Now().Add(time.Hour))
	after := time.Now().Round(0)
	const slack = time.Millisecond // between the two clocks
	if d := got.Sub(before); d < time.Hour-after.Sub(before)-slack || d > time.Hour+after.Sub(before)+slack {
		t.Errorf("an hour from now is %v from now", d)
	}
}
