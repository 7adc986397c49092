package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
)

// impureImports are packages that a pure one has no use for.
var impureImports = map[string]string{
	"os":          pure,
	"log":         pure,
	"log/slog":    pure,
	"crypto/rand": pure,
	"math/rand":   "use math/rand/v2, from a source that the caller gave",
}

// clock are the names of package time that read a clock or wait for one.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// sources are the names of math/rand/v2 that do not draw from its global source.
var sources = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}

// impurities returns what in a file reads the world behind its caller's back.
func impurities(fset *token.FileSet, f *ast.File) []string {
	var out []string
	complain := func(n ast.Node, format string, args ...any) {
		out = append(out, fmt.Sprintf("%v: %s", fset.Position(n.Pos()), fmt.Sprintf(format, args...)))
	}
	names := map[string]string{} // in this file, to import path
	for _, imp := range f.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			panic("archtest: the parser took the import " + imp.Path.Value)
		}
		if why, ok := impureImports[path]; ok {
			complain(imp, "imports %s: %s", path, why)
		}
		name := map[string]string{"time": "time", "math/rand/v2": "rand"}[path]
		if name == "" {
			continue
		}
		if imp.Name != nil {
			name = imp.Name.Name
		}
		if name == "." {
			complain(imp, "imports %s without its name", path)
		}
		names[name] = path
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch path := names[x.Name]; {
		case path == "time" && slices.Contains(clock, sel.Sel.Name):
			complain(sel, "time.%s: time comes as an argument of Step", sel.Sel.Name)
		case path == "math/rand/v2" && !slices.Contains(sources, sel.Sel.Name):
			complain(sel, "rand.%s: chance comes from Config.Rand", sel.Sel.Name)
		}
		return true
	})
	return out
}
