package peers

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// The section of docs/performance.md that is made here stands between these lines.
const (
	begins = "<!-- race: written by `make bench-peers` -->"
	ends   = "<!-- race: end -->"
)

// parts are those of the race, in the order of the table.
var parts = []string{"add", "ping", "again", "load", "left", "restart", "nak", "expiry"}

// kept is what is kept of a part.
type kept struct {
	Machine string `json:"machine"`
	Rows    []row  `json:"rows"`
}

func keep(t testing.TB, folder, part string, rows []row) {
	t.Helper()
	text, err := json.MarshalIndent(kept{machine(t), rows}, "", "  ")
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, part+".json"), append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// publish writes section and plot from what is kept. Parts that were never run are
// left out.
func publish(t testing.TB, folder string) {
	t.Helper()
	all := map[string][]row{}
	var rows []row
	var machines []string
	for _, part := range parts {
		text, err := os.ReadFile(filepath.Join(folder, part+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			t.Logf("%s was not run yet", part)
			continue
		}
		var k kept
		if err == nil {
			err = json.Unmarshal(text, &k)
		}
		if err != nil {
			t.Errorf("what is kept of %s: %v", part, err)
			return
		}
		all[part], rows = k.Rows, append(rows, k.Rows...)
		if len(machines) == 0 || machines[len(machines)-1] != k.Machine {
			machines = append(machines, k.Machine)
		}
	}
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Error(err)
		return
	}
	doc := filepath.Join(root, "docs", "performance.md")
	text, err := os.ReadFile(doc)
	if err == nil {
		text, err = replace(text, section(rows, machines))
	}
	if err == nil {
		err = os.WriteFile(doc, text, 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "docs", "peers.svg"), plot(timings(append(all["add"], all["ping"]...))), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// timings are the rows that hold percentiles.
func timings(rows []row) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.Figures[reference].High == 0 })
}

// replace puts another section between the two markers of a document.
func replace(doc []byte, section string) ([]byte, error) {
	head, rest, ok := bytes.Cut(doc, []byte(begins))
	_, tail, ok2 := bytes.Cut(rest, []byte(ends))
	if !ok || !ok2 {
		return nil, fmt.Errorf("docs/performance.md has no section between %q and %q", begins, ends)
	}
	return []byte(string(head) + begins + "\n" + section + ends + string(tail)), nil
}

// section is what stands in the document.
func section(rows []row, machines []string) string {
	text, behind := table(rows)
	verdict := "The reference is ahead in no row."
	if len(behind) > 0 {
		verdict = "The reference is ahead in: " + strings.Join(behind, "; ") + "."
	}
	return fmt.Sprintf("\n![ADD and DEL, median and 99th percentile](peers.svg)\n\n%s\n%s\n\nMeasured on: %s.\n\n",
		text, verdict, strings.Join(machines, "; and on "))
}

// machine is where and with what a part was run.
func machine(t testing.TB) string {
	t.Helper()
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	model := "unknown processor"
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(cpus); m != nil {
		model = string(m[1])
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	dnsmasq, err := exec.Command("dnsmasq", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`version (\S+)`).FindSubmatch(dnsmasq)
	if release == nil {
		t.Fatalf("dnsmasq --version says %q", dnsmasq)
	}
	// What follows a kernel's own version is the name of a build.
	kernel, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	return fmt.Sprintf("%s, %d cores, Linux %s, %s, dnsmasq %s, plugins %s, %s", model, runtime.NumCPU(),
		kernel, strings.Replace(runtime.Version(), "go", "Go ", 1), release[1], version(t), time.Now().UTC().Format(time.DateOnly))
}

// version is that of the reference, which must be no older than the first release that
// the race is about.
func version(t testing.TB) string {
	t.Helper()
	info, err := buildinfo.ReadFile(filepath.Join(rig.Plugins(), "dhcp"))
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(info.Main.Version, "v%d.%d.", &major, &minor); err != nil || major < 1 || major == 1 && minor < 10 {
		t.Fatalf("the reference is %s %s, want v1.10.0 or later: look at tests/plugins/go.mod", info.Main.Path, info.Main.Version)
	}
	return info.Main.Version
}
