package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// operations is a section of docs/operations.md.
func operations(t *testing.T, heading string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(doc), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/operations.md has no section %q", heading)
	}
	section, _, _ := strings.Cut(rest, "\n## ")
	return section
}

// firstColumn are the cells of a table's first column that are code.
func firstColumn(section string) []string {
	var cells []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		cells = append(cells, m[1])
	}
	return cells
}

// Outputs in the page are those of the program.
func TestDocumentedOutputs(t *testing.T) {
	examples := regexp.MustCompile("(?s)<!-- (\\S+) -->\n```text\n(.*?)```").FindAllStringSubmatch(operations(t, "Commands"), -1)
	if len(examples) == 0 {
		t.Fatal("no example is in the page")
	}
	for _, m := range examples {
		want, err := os.ReadFile(filepath.Join("testdata", m[1]))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), m[2]); diff != "" {
			t.Errorf("%s (-testdata +page):\n%s", m[1], diff)
		}
	}
}

// Every command has its heading.
func TestDocumentedCommands(t *testing.T) {
	section := operations(t, "Commands")
	for _, m := range regexp.MustCompile(`(?m)^  dhcp-engine (\w+)`).FindAllStringSubmatch(usage, -1) {
		if m[1] == "run" || m[1] == "version" { // docs/configuration.md has the first
			continue
		}
		if !regexp.MustCompile(`(?m)^### .*\b` + m[1] + `\b`).MatchString(section) {
			t.Errorf("command %s has no heading", m[1])
		}
	}
}

// The table of log lines has those of info and above that are in the code, no
// more and no fewer.
func TestDocumentedLogLines(t *testing.T) {
	said, _ := texts(t)
	documented := firstColumn(operations(t, "What the log says"))
	for _, line := range documented {
		if !said[line] {
			t.Errorf("nothing logs %q", line)
		}
	}
	for line := range said {
		if !slices.Contains(documented, line) {
			t.Errorf("docs/operations.md does not explain the log line %q", line)
		}
	}
}

// The words by which errors are found are in the code.
func TestDocumentedErrors(t *testing.T) {
	_, literals := texts(t)
	words := firstColumn(operations(t, "What errors say"))
	if len(words) == 0 {
		t.Fatal("no error is in the page")
	}
	for _, w := range words {
		if !slices.ContainsFunc(literals, func(l string) bool { return strings.Contains(l, w) }) {
			t.Errorf("no error says %q", w)
		}
	}
}

// texts reads the sources of the engine: its log messages of info and above, and
// all literal strings.
func texts(t *testing.T) (said map[string]bool, literals []string) {
	t.Helper()
	said = map[string]bool{}
	for _, root := range []string{".", "../../pkg/engine", "../../internal/install", "../../internal/nic", "../../internal/ovnnb", "../../internal/podannotation", "../../internal/publish", "../../internal/kube", "../../internal/leaseobjects", "../../internal/vfio"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if text, ok := logged(n); ok {
						said[text] = true
					}
				case *ast.BasicLit:
					if text, ok := literal(n); ok {
						literals = append(literals, text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return said, literals
}

// logged is the message of a call like log.Warn("message", ...), or of
// session.trouble, which logs a warning.
func logged(call *ast.CallExpr) (string, bool) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 || !slices.Contains([]string{"Info", "Warn", "Error", "trouble"}, f.Sel.Name) {
		return "", false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	return literal(lit)
}

func literal(lit *ast.BasicLit) (string, bool) {
	if lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
