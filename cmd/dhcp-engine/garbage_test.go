package main

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestGarbage: it is collected less often from the first call of many to a while after
// the last one, and what that took is given back once.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var did []string
		freed := make(chan struct{}, 10)
		g := &garbage{
			percent: func(n int) int { did = append(did, fmt.Sprint("percent ", n)); return 0 },
			free:    func() { freed <- struct{}{} },
		}
		want := func(when string, notes ...string) {
			t.Helper()
			synctest.Wait()
			g.mu.Lock() // for the race detector
			defer g.mu.Unlock()
			if !slices.Equal(did, notes) {
				t.Errorf("%s: %q, want %q", when, did, notes)
			}
			did = nil
		}
		for range 2 {
			g.call()
			want("first call", fmt.Sprint("percent ", busyPercent))
			for range 10 {
				time.Sleep(calmAfter / 2)
				g.call()
			}
			time.Sleep(calmAfter - time.Millisecond)
			want("many calls")
			time.Sleep(time.Millisecond)
			want("calm", fmt.Sprint("percent ", gcPercent))
			time.Sleep(time.Hour)
			want("an hour later")
			if len(freed) != 1 {
				t.Errorf("memory was given back %d times, want once", len(freed))
			}
			<-freed
		}
	})
}
