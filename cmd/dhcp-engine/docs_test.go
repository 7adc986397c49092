package main

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocs holds the table of docs/configuration.md against the flags: the same
// names, variables and defaults, no more and no fewer.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## dhcp-engine\n")
	if !found {
		t.Fatal("docs/configuration.md has no section dhcp-engine")
	}
	type row struct{ Flag, Variable, Default string }
	written := map[string]row{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(--[^`]+)` \\| `([^`]+)` \\| (?:`([^`]+)` )?\\|").FindAllStringSubmatch(section, -1) {
		written[m[1]] = row{m[1], m[2], m[3]}
	}

	in, _ := declare(environment(nil))
	want := map[string]row{}
	in.flags.VisitAll(func(f *flag.Flag) {
		_, value, _ := strings.Cut(f.Usage, "; default ")
		want["--"+f.Name] = row{"--" + f.Name, envName(f.Name), value}
	})
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
