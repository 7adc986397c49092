package kube

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// The table of docs/operations.md has the reasons that the engine knows, with the type
// that an event of theirs has.
func TestDocumentedEvents(t *testing.T) {
	source, err := os.ReadFile("../../pkg/engine/hooks.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)EventReason += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		want = append(want, "| `"+m[1]+"` | "+typeOf(engine.EventReason(m[1])))
	}
	_, section, _ := strings.Cut(string(doc), "\n## Events on pods\n")
	section, _, _ = strings.Cut(section, "\n## ")
	got := regexp.MustCompile("(?m)^\\| `\\w+` \\| \\w+").FindAllString(section, -1)
	slices.Sort(want)
	slices.Sort(got)
	if len(want) == 0 {
		t.Fatal("no reasons in hooks.go")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons of events (-there are +documented):\n%s", diff)
	}
}
