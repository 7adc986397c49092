package rig

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for something that should come at once. It
// is long because a busy machine is no failure.
const Patience = 30 * time.Second

// Stream is a growing list that one side adds to and others wait on. It is safe
// for concurrent use; the zero value is empty.
type Stream[E any] struct {
	mu     sync.Mutex
	items  []E
	ended  bool
	change chan struct{} // closed at the next change; nil when nobody waits
}

// Add appends e.
func (s *Stream[E]) Add(e E) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = append(s.items, e)
	s.wake()
}

// End says that nothing more will come.
func (s *Stream[E]) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
}

func (s *Stream[E]) wake() {
	if s.change != nil {
		close(s.change)
		s.change = nil
	}
}

// Len is the number of items so far; a mark for Since and Await.
func (s *Stream[E]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items)
}

// Since returns the items from mark on.
func (s *Stream[E]) Since(mark int) []E {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]E(nil), s.items[mark:]...)
}

// Count returns how many items from mark on match.
func (s *Stream[E]) Count(mark int, match func(E) bool) int {
	n := 0
	for _, e := range s.Since(mark) {
		if match(e) {
			n++
		}
	}
	return n
}

// Next returns the first item from mark on that matches, and the mark behind it.
// It waits until there is one, the stream has ended, or ctx is done.
func (s *Stream[E]) Next(ctx context.Context, mark int, match func(E) bool) (E, int, error) {
	var none E
	for {
		s.mu.Lock()
		for ; mark < len(s.items); mark++ {
			if match(s.items[mark]) {
				e := s.items[mark]
				s.mu.Unlock()
				return e, mark + 1, nil
			}
		}
		if s.ended {
			s.mu.Unlock()
			return none, mark, fmt.Errorf("the stream has ended")
		}
		if s.change == nil {
			s.change = make(chan struct{})
		}
		change := s.change
		s.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return none, mark, ctx.Err()
		}
	}
}

// Await is Next for a test: it ends the test with everything seen since mark when
// nothing matches within wait.
func (s *Stream[E]) Await(t testing.TB, what string, mark int, wait time.Duration, match func(E) bool) (E, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	e, next, err := s.Next(ctx, mark, match)
	if err != nil {
		t.Fatalf("no %s within %v (%v); seen:\n%s", what, wait, err, list(s.Since(mark)))
	}
	return e, next
}

func list[E any](items []E) string {
	if len(items) == 0 {
		return "\t(nothing)"
	}
	var b strings.Builder
	for _, e := range items {
		fmt.Fprintf(&b, "\t%v\n", e)
	}
	return b.String()
}
