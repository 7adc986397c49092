// Package manual holds docs/reference.md against what the programs say of themselves.
// `make manual` writes it.
package manual

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = "../../docs/reference.md"

var write = flag.Bool("write", false, "write docs/reference.md")

const head = `# Every command, flag and key

Written by ` + "`make manual`" + ` from what the programs print with ` + "`-h`" + `, and from the parser of networks.
What the settings are for is told in [configuration.md](configuration.md), and what the commands
print in [operations.md](operations.md). The plugin ` + "`dhcp-meta`" + ` has no flags: a runtime
tells it all by its environment and its standard input (the CNI specification).
`

func TestReference(t *testing.T) {
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/dhcp-engine", "../../cmd/kubectl-dhcp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := head
	for _, program := range []struct{ file, calledAs string }{{"dhcp-engine", "dhcp-engine"}, {"kubectl-dhcp", "kubectl dhcp"}} {
		usage := say(t, filepath.Join(bin, program.file), "-h")
		text += "\n## " + program.calledAs + "\n\n```text\n" + usage + "```\n"
		names := commands(usage, program.calledAs)
		if len(names) < 5 {
			t.Fatalf("commands in the help of %s: %q", program.calledAs, names)
		}
		for _, name := range names {
			if name == "version" {
				continue
			}
			text += "\n### " + program.calledAs + " " + name + "\n\n```text\n" + say(t, filepath.Join(bin, program.file), name, "-h") + "```\n"
		}
	}
	text += keys(t)
	if *write {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	had, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text, string(had)); diff != "" {
		t.Errorf("docs/reference.md (-programs +page), `make manual` writes it:\n%s", diff)
	}
}

// commands are the subcommands that a usage text lists, each once.
func commands(usage, program string) []string {
	var names []string
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  `+program+` ([a-z]+)`).FindAllStringSubmatch(usage, -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			names = append(names, m[1])
		}
	}
	return names
}

// say is what a program prints, with an environment that holds no setting of it.
func say(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return strings.TrimRight(string(out), "\n") + "\n"
}
