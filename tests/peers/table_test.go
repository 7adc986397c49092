package peers

import (
	"fmt"
	"strconv"
	"strings"
)

// figure is one field of the table.
type figure struct {
	Text string `json:"text"`
	// Number is what is compared; of a sample it is the median, and High the
	// ninety-ninth percentile.
	Number float64 `json:"number"`
	High   float64 `json:"high,omitempty"`
	// Never says that what is waited for did not come.
	Never bool `json:"never,omitempty"`
	// More says that more is better.
	More bool `json:"more,omitempty"`
}

// row is a line of the table: what is measured, and the figure of each contender.
type row struct {
	What    string            `json:"what"`
	Figures map[string]figure `json:"figures"`
}

func newRow(what string) row { return row{What: what, Figures: map[string]figure{}} }

func (r row) String() string {
	var fields []string
	for _, name := range contenders {
		if f, ok := r.Figures[name]; ok {
			fields = append(fields, name+" "+f.Text)
		}
	}
	return strings.Join(fields, ", ")
}

// count is a number of things.
func count(n int) string { return group(strconv.Itoa(n)) }

// less is a count of what should be few.
func less(n int) figure { return figure{Text: count(n), Number: float64(n)} }

// more is a count of what should be many: of total, where that is not 0.
func more(n, total int) figure {
	text := count(n)
	if total > 0 {
		text += " of " + count(total)
	}
	return figure{Text: text, Number: float64(n), More: true}
}

// compare is how many times better the engine is than the reference, in words, and
// whether it is worse anywhere.
func (r row) compare() (text string, behind bool) {
	theirs, ours := r.Figures[reference], r.Figures[engine]
	switch {
	case ours.Never:
		return "", !theirs.Never
	case theirs.Never:
		return "", false
	case ours.More:
		return "", ours.Number < theirs.Number
	case ours.Number == 0:
		return "", false
	case ours.High == 0 && theirs.Number == 0:
		return "", true
	}
	text, behind = times(theirs.Number, ours.Number)
	if ours.High > 0 {
		high, worse := times(theirs.High, ours.High)
		text, behind = text+" / "+high, behind || worse
	}
	return text, behind
}

// times is theirs / ours; what rounds to 1.0 is no difference.
func times(theirs, ours float64) (text string, behind bool) {
	text = fmt.Sprintf("%.1f", theirs/ours)
	return text, theirs/ours < 0.95
}

// table is all rows as Markdown, and the names of those in which the reference is
// ahead.
func table(rows []row) (text string, behind []string) {
	var b strings.Builder
	b.WriteString("| | reference | dhcp-engine | times better | with `fast` | `dhcp-meta` |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		better, worse := r.compare()
		if worse {
			behind = append(behind, r.What)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.What,
			r.Figures[reference].Text, r.Figures[engine].Text, better, r.Figures[fast].Text, r.Figures[delegate].Text)
	}
	return b.String(), behind
}
