package manual

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// keys is the table of all keys of a dhcp object: what each takes, as its own error
// messages say, and what stands above it in the parser.
func keys(t *testing.T) string {
	file, lines := parsed(t)
	comments := map[int]string{} // by the line that they stand above
	for _, c := range file.Comments {
		comments[lines.Position(c.End()).Line+1] = strings.Join(strings.Fields(c.Text()), " ")
	}
	var table strings.Builder
	table.WriteString("\n## Keys of the dhcp object\n\n[configuration.md](configuration.md#the-dhcp-object) has more of each.\n\n| key | takes | what it is |\n|---|---|---|\n")
	for _, k := range keyTable(t, file) {
		name, err := strconv.Unquote(k.Key.(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		comment := comments[lines.Position(k.Pos()).Line]
		if comment == "" {
			t.Errorf("%s: nothing stands above it", name)
		}
		checkDefault(t, name, comment)
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", name, takes(t, name), strings.ReplaceAll(comment, "|", "\\|"))
	}
	return table.String()
}

var defaults = regexp.MustCompile(`; default ("[^"]*"|\[\]|\{\}|true|false|\d+)`)

// checkDefault holds the default that a comment names against the parser.
func checkDefault(t *testing.T, key, comment string) {
	t.Helper()
	m := defaults.FindStringSubmatch(comment)
	if m == nil {
		if !strings.Contains(comment, "default") {
			t.Errorf("%s: nothing is said of a default: %s", key, comment)
		}
		return
	}
	said, err := network.Parse(json.RawMessage(`{"` + key + `":` + m[1] + `}`))
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	none, err := network.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	said.ClientIDSet = none.ClientIDSet
	if diff := cmp.Diff(none, said, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("%s is not %s by default (-default +said):\n%s", key, m[1], diff)
	}
}

// keyTable is the table of keys in the parser.
func keyTable(t *testing.T, file *ast.File) (table []*ast.KeyValueExpr) {
	t.Helper()
	ast.Inspect(file, func(n ast.Node) bool {
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

// parsed is the source of the parser of networks.
func parsed(t *testing.T) (*ast.File, *token.FileSet) {
	t.Helper()
	lines := token.NewFileSet()
	file, err := parser.ParseFile(lines, "../../pkg/engine/network/parse.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file, lines
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
