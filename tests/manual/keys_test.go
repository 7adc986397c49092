package manual

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

const networkPackage = "../../pkg/engine/network/"

// keys is the table of all keys of a dhcp object: what each takes, as its own error
// messages say, and what the code says of it.
func keys(t *testing.T) string {
	comments := fields(t)
	var table strings.Builder
	table.WriteString("\n## Keys of the dhcp object\n\n| key | takes | in the code |\n|---|---|---|\n")
	for _, k := range keyTable(t) {
		name, err := strconv.Unquote(k.Key.(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		comment := comments[target(k.Value)]
		if comment == "" {
			t.Errorf("%s: the field that it fills has no comment", name)
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", name, takes(t, name), strings.ReplaceAll(comment, "|", "\\|"))
	}
	return table.String()
}

// keyTable is the table of keys in the parser.
func keyTable(t *testing.T) (table []*ast.KeyValueExpr) {
	t.Helper()
	ast.Inspect(parsed(t, "parse.go"), func(n ast.Node) bool {
		fn, ok := n.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "keys" {
			return true
		}
		list := fn.Body.List[0].(*ast.ReturnStmt).Results[0].(*ast.CompositeLit)
		for _, e := range list.Elts {
			table = append(table, e.(*ast.KeyValueExpr))
		}
		return false
	})
	if len(table) < 20 {
		t.Fatalf("%d keys found", len(table))
	}
	return table
}

// target is the field whose address a key's function hands on.
func target(fn ast.Node) (field string) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if u, ok := n.(*ast.UnaryExpr); ok && u.Op == token.AND {
			if s, ok := u.X.(*ast.SelectorExpr); ok {
				field = s.Sel.Name
			}
		}
		return true
	})
	return field
}

// fields are the comments on the fields of network.Settings, each on one line. Where a
// field has a type of its own, that says what it is for.
func fields(t *testing.T) map[string]string {
	t.Helper()
	types := map[string]string{}
	var settings *ast.StructType
	for _, decl := range parsed(t, "settings.go").Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec := g.Specs[0].(*ast.TypeSpec)
		types[spec.Name.Name] = oneLine(g.Doc)
		if spec.Name.Name == "Settings" {
			settings = spec.Type.(*ast.StructType)
		}
	}
	comments := map[string]string{}
	last := ""
	for _, f := range settings.Fields.List {
		if f.Doc != nil { // otherwise it goes with the field above
			last = oneLine(f.Doc)
		}
		for _, name := range f.Names {
			comments[name.Name] = last
			if typ, ok := f.Type.(*ast.Ident); ok && types[typ.Name] != "" {
				comments[name.Name] = types[typ.Name]
			}
		}
	}
	return comments
}

func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

func parsed(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), networkPackage+file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var (
	wanted = regexp.MustCompile(`is .*, not (.*)$`)
	words  = regexp.MustCompile(`is none of \[(.*)\]$|is neither (".*" nor ".*")$`)
)

// takes is the type of a key's value, and its words where only some will do.
func takes(t *testing.T, key string) string {
	t.Helper()
	typ := ""
	for _, other := range []string{"[]", `"x"`} { // no key takes both
		if m := wanted.FindStringSubmatch(problem(key, other)); m != nil {
			typ = m[1]
			break
		}
	}
	if typ == "" {
		t.Errorf("%s: no message says what it takes: %s; %s", key, problem(key, "[]"), problem(key, `"x"`))
	}
	m := words.FindStringSubmatch(problem(key, `"?"`))
	switch {
	case m == nil:
		return typ
	case m[1] != "":
		return strings.ReplaceAll(m[1], `" "`, `", "`)
	}
	return strings.Replace(m[2], " nor ", ", ", 1)
}

// problem is what the parser says of a value.
func problem(key, value string) string {
	_, err := network.Parse(json.RawMessage(`{"` + key + `":` + value + `}`))
	var all network.Problems
	if !errors.As(err, &all) {
		return fmt.Sprint(err)
	}
	return all[0]
}
