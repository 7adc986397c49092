// Package coverage holds docs/coverage.md against the tests that exist.
package coverage

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// A test is written `pkg/engine.TestName` in the table: folder and function.
var testName = regexp.MustCompile("`([a-z0-9/_-]+)\\.((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]*)`")

// Every test that docs/coverage.md names exists, and every row names one.
func TestTableNamesTestsThatExist(t *testing.T) {
	have := tests(t)
	for _, r := range rows(t) {
		names := testName.FindAllStringSubmatch(r.text, -1)
		if len(names) == 0 {
			t.Errorf("line %d names no test: %s", r.line, r.text)
		}
		for _, n := range names {
			if !have[n[1]+"."+n[2]] {
				t.Errorf("line %d: there is no test %s in %s", r.line, n[2], n[1])
			}
		}
	}
}

var fieldCase = regexp.MustCompile(`^Test(B[0-9]+)`)

// Every field case that a test is named after has a row.
func TestFieldCasesAreInTheTable(t *testing.T) {
	listed := map[string]bool{}
	for _, r := range rows(t) {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.text, "| "), " |")
		listed[first] = true
	}
	for name := range tests(t) {
		_, function, _ := strings.Cut(name, ".")
		if m := fieldCase.FindStringSubmatch(function); m != nil && !listed[m[1]] {
			t.Errorf("%s is named after %s, which has no row in docs/coverage.md", name, m[1])
		}
	}
}

type row struct {
	line int
	text string
}

// rows are the body rows of the tables in docs/coverage.md.
func rows(t *testing.T) []row {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs/coverage.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	var list []row
	for i, text := range lines {
		header := i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|--")
		if strings.HasPrefix(text, "|") && !strings.HasPrefix(text, "|--") && !header {
			list = append(list, row{i + 1, text})
		}
	}
	if len(list) == 0 {
		t.Fatal("docs/coverage.md has no table")
	}
	return list
}

// tests are all test functions of the module, as "folder.Function".
func tests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				found[folder+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
