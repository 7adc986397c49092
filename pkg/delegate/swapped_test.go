package delegate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// The tests in this file run the program in the place of the plugin that it stands
// before, which the installer has put beside it.

// newSwapped has the program as root/bin/<plugin>, and another plugin of that name
// behind it in CNI_PATH, which nobody may run.
func newSwapped(t *testing.T) (p *process, wrapped string) {
	t.Helper()
	p = newProcess(t, "bin", ovnPlugin, ovnPlugin)
	p.env = []string{"CNI_CONTAINERID=" + ovnSandbox}
	dir := aside.WrappedFolder(p.path[0])
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	wrapped = filepath.Join(dir, ovnPlugin)
	p.copy("testdata/plugin", wrapped)
	return p, wrapped
}

// ran holds that the plugin at path ran, and no other.
func (p *process) ran(verb, path string) {
	p.t.Helper()
	if diff := cmp.Diff(path, strings.TrimSpace(p.said(verb, "name"))); diff != "" {
		p.t.Errorf("plugin that ran at %s (-want +got):\n%s", verb, diff)
	}
}

func (p *process) marked() {
	p.conf("1.1.0")
	p.args.StdinData = []byte(strings.Replace(string(p.args.StdinData), `"type":"dhcp-meta"`, `"type":"`+ovnPlugin+`"`, 1))
}

func TestSwappedUnmarked(t *testing.T) {
	for name, path := range map[string]func(p *process) []string{
		"OK":                            func(p *process) []string { return p.path },
		"OK its folder alone":           func(p *process) []string { return p.path[:1] },
		"OK its folder not in the path": func(p *process) []string { return p.path[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			p, wrapped := newSwapped(t)
			p.args.StdinData = []byte(`{"cniVersion":"1.0.0","name":"n","type":"` + ovnPlugin + `"}`)
			c := p.command("ADD", ovnPlugin)
			c.Env = append(c.Env, "CNI_PATH="+strings.Join(path(p), ":"))
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			p.ran("ADD", wrapped)
		})
	}
}

func TestSwappedMarked(t *testing.T) {
	p, wrapped := newSwapped(t)
	p.marked()
	p.start()
	stdout, stderr, err := p.call("ADD", ovnPlugin)
	if err != nil || !strings.Contains(stdout, "10.77.0.50/24") {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	p.ran("ADD", wrapped)
}

// An uninstaller puts the plugin back while a call runs that was started from its place.
func TestSwappedAndUninstalledMeanwhile(t *testing.T) {
	t.Run("OK unmarked", func(t *testing.T) {
		p, wrapped := newSwapped(t)
		p.args.StdinData = []byte(`{"cniVersion":"1.0.0","name":"n","type":"` + ovnPlugin + `"}`)
		c := p.command("ADD", ovnPlugin)
		program, err := filepath.EvalSymlinks(c.Path)
		if err != nil {
			t.Fatal(err)
		}
		c.Path = program // the file that was at c.Args[0] when the kernel began
		c.Env = append(c.Env, "CNI_PATH="+p.path[0])
		if err := os.Rename(wrapped, c.Args[0]); err != nil {
			t.Fatal(err)
		}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		p.ran("ADD", p.path[0]+"//"+ovnPlugin)
	})
	t.Run("OK marked, after the plugin was found", func(t *testing.T) {
		p, wrapped := newSwapped(t)
		p.marked()
		own := filepath.Join(p.path[0], ovnPlugin)
		p.path = p.path[:1]
		p.engine.on = map[string]func(context.Context) error{
			"prepare": func(context.Context) error { return os.Rename(wrapped, own) },
		}
		p.start()
		if stdout, stderr, err := p.call("ADD", ovnPlugin); err != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		p.ran("ADD", own)
	})
	// The program must not execute itself for ever.
	t.Run("bad it is nowhere", func(t *testing.T) {
		for _, path := range []int{0, 1} {
			p, wrapped := newSwapped(t)
			p.args.StdinData = []byte(`{"cniVersion":"1.0.0","name":"n","type":"` + ovnPlugin + `"}`)
			if err := os.Remove(wrapped); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(p.folder("real")); err != nil {
				t.Fatal(err)
			}
			c := p.command("ADD", ovnPlugin)
			c.Env = append(c.Env, "CNI_PATH="+p.path[path])
			out, err := c.CombinedOutput()
			if err == nil || !strings.Contains(string(out), `"code": 7`) || !strings.Contains(string(out), p.path[path]) {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
}
