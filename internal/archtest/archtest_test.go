package archtest

import (
	"bytes"
	"encoding/json"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// list returns all packages of the module and all that they depend on.
func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps,Dir,GoFiles", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	// go test takes the result of an earlier run when nothing has changed that
	// the test looked at; it does not see what go list looked at.
	for _, dir := range []string{"cmd", "internal", "pkg", "go.mod"} {
		if err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestImports(t *testing.T) {
	for _, v := range violations(list(t), rules) {
		t.Error(v)
	}
}

// TestPurity parses what decides without a world around it: the state machine
// gives the same actions for the same events, and a lease has the same routes
// under the same policy.
func TestPurity(t *testing.T) {
	pure := map[string]int{module + "pkg/engine/dhcp4": 0, module + "pkg/engine/routing": 0}
	for _, p := range list(t) {
		if _, ok := pure[p.ImportPath]; !ok {
			continue
		}
		for _, file := range p.GoFiles {
			pure[p.ImportPath]++
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range impurities(fset, f) {
				t.Error(v)
			}
		}
	}
	for path, files := range pure {
		if files == 0 {
			t.Errorf("found no files of %s", path)
		}
	}
}

// TestMetricsAlone: of the engine only metrics.go knows Prometheus.
func TestMetricsAlone(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != module+"pkg/engine" {
			continue
		}
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range f.Imports {
				if path := strings.Trim(imp.Path.Value, `"`); within(path, prometheus) && file != "metrics.go" {
					t.Errorf("pkg/engine/%s imports %s: only metrics.go may", file, path)
				}
			}
		}
	}
}

// TestViolations shows that the rules can be broken.
func TestViolations(t *testing.T) {
	rules := map[string]rule{
		"pkg/pure":  {direct: []string{"example.com/codec"}},
		"pkg/user":  {ours: []string{"pkg/pure"}, never: map[string]string{"example.com/heavy": "too heavy"}},
		"pkg/above": {ours: []string{"pkg/user"}, never: map[string]string{module + "pkg/pure": "not even below"}},
	}
	fine := func() []listed {
		return []listed{
			{ImportPath: "fmt", Standard: true},
			{ImportPath: "example.com/codec/v4"},
			{ImportPath: module + "pkg/pure", Imports: []string{"fmt", "example.com/codec/v4"}},
			{ImportPath: module + "pkg/user", Imports: []string{module + "pkg/pure", "example.com/light"}},
			{ImportPath: module + "pkg/above", Imports: []string{module + "pkg/user"}, Deps: []string{module + "pkg/user", module + "pkg/pure2"}},
			{ImportPath: module + "tests/any", Imports: []string{module + "pkg/pure", "example.com/heavy"}},
		}
	}
	const pureAt, userAt, aboveAt = 2, 3, 4
	for _, tt := range []struct {
		name   string
		change func(all []listed) []listed
		want   []string
	}{
		{"OK", func(all []listed) []listed { return all }, nil},
		{"bad own import", func(all []listed) []listed {
			all[pureAt].Imports = append(all[pureAt].Imports, module+"pkg/user")
			return all
		}, []string{"pkg/pure imports pkg/user: of ours it may import []"}},
		{"bad foreign import", func(all []listed) []listed {
			all[pureAt].Imports = append(all[pureAt].Imports, "example.com/codecs")
			return all
		}, []string{"pkg/pure imports example.com/codecs: besides the standard library it may import [example.com/codec]"}},
		{"bad link far below", func(all []listed) []listed {
			all[userAt].Deps = []string{"example.com/light", "example.com/heavy/core"}
			return all
		}, []string{"pkg/user links example.com/heavy/core: too heavy"}},
		{"bad link of our own", func(all []listed) []listed {
			all[aboveAt].Deps = append(all[aboveAt].Deps, module+"pkg/pure")
			return all
		}, []string{"pkg/above links " + module + "pkg/pure: not even below"}},
		{"bad package without a rule", func(all []listed) []listed { return append(all, listed{ImportPath: module + "pkg/new"}) },
			[]string{"pkg/new has no rule: give it one, and a line in docs/architecture.md"}},
		{"bad rule without a package", func(all []listed) []listed { return all[:aboveAt] }, []string{"pkg/above has a rule and does not exist"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, violations(tt.change(fine()), rules)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImpurities(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      []string // in the complaints, one each
	}{
		{"OK arguments", `import ("math/rand/v2"; "time"); func f(now time.Time, r *rand.Rand) time.Time { return now.Add(time.Duration(r.Int64())) }`, nil},
		{"OK a name of its own", `type t struct{ Now func() }; func f(time t) { time.Now() }`, nil},
		{"bad clock", `import "time"; var t = time.Now`, []string{"time.Now"}},
		{"bad timer under another name", `import clock "time"; func f() { clock.NewTimer(0); <-clock.After(1) }`, []string{"time.NewTimer", "time.After"}},
		{"bad dot import", `import . "time"; var t = Now()`, []string{"without its name"}},
		{"bad global chance", `import "math/rand/v2"; var n = rand.IntN(3)`, []string{"rand.IntN"}},
		{"bad old chance", `import "math/rand"; var n = rand.New(nil)`, []string{"math/rand"}},
		{"bad log and system", `import ("log/slog"; "os"); var l, o = slog.Default(), os.Args`, []string{"log/slog", "imports os"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "f.go", "package p; "+tt.src, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			got := impurities(fset, f)
			if len(got) != len(tt.want) {
				t.Fatalf("complaints are %q, want %d", got, len(tt.want))
			}
			for i := range got {
				if !strings.Contains(got[i], tt.want[i]) {
					t.Errorf("complaint %q does not name %s", got[i], tt.want[i])
				}
			}
		})
	}
}
