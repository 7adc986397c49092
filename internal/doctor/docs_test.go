package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func documents(text string) []string { return strings.Split(text, "\n---\n") }

// ids are the constants of ids.go, by name; an area's begins with Area.
func ids(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "ids.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all[spec.Names[0].Name] = text
		}
		return true
	})
	return all
}

// docs/operations.md explains each finding: what it says, how it is known, what to do.
func TestDocumentedFindings(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n### doctor\n")
	if !found {
		t.Fatal("docs/operations.md has no section doctor")
	}
	section, _, _ = strings.Cut(section, "\n### ")
	section, _, _ = strings.Cut(section, "\n## ")
	var written, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$").FindAllStringSubmatch(section, -1) {
		written = append(written, m[1])
	}
	for name, id := range ids(t) {
		if !strings.HasPrefix(name, "Area") {
			want = append(want, id)
		}
	}
	slices.Sort(written)
	slices.Sort(want)
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("(-code +page):\n%s", diff)
	}
	for name, id := range ids(t) {
		if strings.HasPrefix(name, "Area") && !strings.Contains(section, "`"+id+"`") {
			t.Errorf("the page does not name area %s", id)
		}
	}
}

// Each finding is provoked by a test, here or on a real node.
func TestEachFindingIsProvoked(t *testing.T) {
	var tests strings.Builder
	for _, folder := range []string{".", "../../tests/doctor"} {
		files, err := filepath.Glob(folder + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(text)
		}
	}
	for name := range ids(t) {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(tests.String()) {
			t.Errorf("no test provokes %s", name)
		}
	}
}

// A report is one line for each finding, with its ways of knowing and doing below.
func TestReport(t *testing.T) {
	r := Report{Version: "v1.2.3", Node: "node-1", Findings: []Finding{
		{ID: AreaState, Level: OK, What: "/var/lib/dhcp-meta"},
		{SocketMissing, Error, "no engine\x1b[31m runs", "dial unix:\nno such file", "start it"},
		{PromoteOff, Note, "a", "b", "c"},
	}}
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	want := `ok       state: /var/lib/dhcp-meta
error    socket-missing: no engine [31m runs
         seen: dial unix: no such file
         do:   start it
note     promote-secondaries: a
         seen: b
         do:   c
node node-1, dhcp-engine v1.2.3: errors: 1, warnings: 0, notes: 1
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}
