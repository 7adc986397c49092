package doctor

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Write writes a report for people: a line for each finding, below it how that is
// known and what to do, and a line that counts.
func (r Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-7s  %s: %s\n", f.Level, f.ID, oneLine(f.What))
		if f.How != "" {
			fmt.Fprintf(&b, "         seen: %s\n", oneLine(f.How))
		}
		if f.Do != "" {
			fmt.Fprintf(&b, "         do:   %s\n", oneLine(f.Do))
		}
	}
	fmt.Fprintf(&b, "node %s, dhcp-engine %s: errors: %d, warnings: %d, notes: %d\n",
		cmp.Or(r.Node, "-"), r.Version, r.Count(Error), r.Count(Warning), r.Count(Note))
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine keeps what came from elsewhere from breaking the lines, or talking to the
// terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.TrimSpace(s))
}
