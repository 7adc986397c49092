package main

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docs/operations.md has the commands that there are, no more and no fewer, and each
// flag of theirs.
func TestDocumentedCommands(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## kubectl-dhcp\n")
	if !found {
		t.Fatal("docs/operations.md has no section kubectl-dhcp")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^  kubectl dhcp (\w+)`).FindAllStringSubmatch(usage, -1) {
		if len(want) == 0 || want[len(want)-1] != m[1] {
			want = append(want, m[1])
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `kubectl dhcp (\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("commands (-there are +documented):\n%s", diff)
	}
	for _, name := range want {
		var help helpError
		if name == "version" {
			continue
		}
		if err := commandNamed(name)(t.Context(), []string{"-h"}, streams{}); !errors.As(err, &help) {
			t.Fatalf("%s -h: %v", name, err)
		}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-(\w), )?--([\w-]+)`).FindAllStringSubmatch(string(help), -1) {
			if !strings.Contains(section, "--"+m[2]) && !(m[1] != "" && regexp.MustCompile("`-"+m[1]+"[` ]").MatchString(section)) {
				t.Errorf("flag --%s of %s is not in the page", m[2], name)
			}
		}
	}
}
