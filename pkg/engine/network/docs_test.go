package network

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The table of docs/configuration.md has the keys that there are, no others.
func TestDocumentedKeys(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := cutLine(string(doc), "## The dhcp object")
	if !ok {
		t.Fatal("there is no heading \"The dhcp object\"")
	}
	section, _, _ := cutLine(rest, "### Templates")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(documented)
	if diff := cmp.Diff(Keys(), documented); diff != "" {
		t.Errorf("keys (-known +documented):\n%s", diff)
	}
}

// cutLine cuts text around the first line that is line.
func cutLine(text, line string) (before, after string, found bool) {
	at := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(line) + "$").FindStringIndex(text)
	if at == nil {
		return text, "", false
	}
	return text[:at[0]], text[at[1]:], true
}
