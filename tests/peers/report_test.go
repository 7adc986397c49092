package peers

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func timed(what string, theirs, ours time.Duration) row {
	r := newRow(what)
	r.Figures[reference] = sample{took: []time.Duration{theirs}}.figure()
	r.Figures[engine] = sample{took: []time.Duration{ours}}.figure()
	return r
}

func counted(what string, theirs, ours figure) row {
	return row{What: what, Figures: map[string]figure{reference: theirs, engine: ours}}
}

// TestBehind: no row in which the reference is ahead is passed over in silence.
func TestBehind(t *testing.T) {
	never := after(time.Now(), time.Time{}, time.Minute)
	_, behind := table([]row{
		timed("ADD & more", 40*time.Millisecond, 20*time.Millisecond),
		timed("slower", 20*time.Millisecond, 40*time.Millisecond),
		timed("as fast as", 20*time.Millisecond, 20*time.Millisecond),
		counted("none left", less(1000), less(0)),
		counted("more left", less(0), less(1)),
		counted("more renewals", more(0, 3), more(3, 3)),
		counted("fewer renewals", more(3, 0), more(0, 0)),
		counted("theirs never", never, after(time.Now(), time.Now(), 0)),
		counted("ours never", after(time.Now(), time.Now(), 0), never),
		counted("both never", never, never),
	})
	if want := []string{"slower", "more left", "fewer renewals", "ours never"}; !slices.Equal(behind, want) {
		t.Errorf("behind in %q, want %q", behind, want)
	}
}

func TestSample(t *testing.T) {
	var s sample
	for i := range 200 {
		s.took = append(s.took, time.Duration(200-i)*time.Millisecond)
	}
	s.failed = 2
	if got, want := s.figure().Text, "100 / 198 ms, 2 of 202 failed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := digits(1234567), "1,234,567"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestDocuments: the plot is well-formed, and nothing of the document is lost.
func TestDocuments(t *testing.T) {
	d := xml.NewDecoder(bytes.NewReader(plot([]row{timed("ADD & more", time.Second, time.Millisecond)})))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	doc := "before\n" + begins + "\nold\n" + ends + "\nafter\n"
	got, err := replace([]byte(doc), "new\n")
	if err != nil || string(got) != strings.Replace(doc, "old", "new", 1) {
		t.Errorf("%q, %v", got, err)
	}
	for _, doc := range []string{"", begins, ends + begins} {
		if _, err := replace([]byte(doc), "new\n"); err == nil {
			t.Errorf("%q has a section", doc)
		}
	}
}
