package sriov

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// modprobeFolders hold what an operator says of modules (modprobe.d(5)). A file of
// an earlier folder stands for all of the same name in later ones.
var modprobeFolders = []string{"etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d"}

// modprobe is what an operator says of modules.
type modprobe struct {
	// barred are modules that must not be loaded because a device is theirs, with
	// the place that says so.
	barred map[string]string
	// commands are modules that have a command of their own to load them.
	commands map[string]string
	options  map[string][]string
	aliases  []alias
}

type alias struct{ pattern, module string }

func newModprobe() *modprobe {
	return &modprobe{barred: map[string]string{}, commands: map[string]string{}, options: map[string][]string{}}
}

// readModprobe reads all folders and the kernel's command line.
func (h *Host) readModprobe() (*modprobe, error) {
	paths := map[string]string{}
	for _, folder := range modprobeFolders {
		found, err := filepath.Glob(h.path(folder, "*.conf"))
		if err != nil {
			return nil, fmt.Errorf("read modprobe.d: %w", err)
		}
		for _, p := range found {
			if name := filepath.Base(p); paths[name] == "" {
				paths[name] = p
			}
		}
	}
	m := newModprobe()
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		f, err := os.Open(paths[name])
		if errors.Is(err, fs.ErrNotExist) {
			continue // a link to nothing, or to /dev/null of another root
		}
		if err != nil {
			return nil, fmt.Errorf("read modprobe.d: %w", err)
		}
		err = m.parse(f, "/"+strings.TrimPrefix(strings.TrimPrefix(paths[name], h.root), "/"))
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read modprobe.d: %s: %w", paths[name], err)
		}
	}
	line, err := text(h.path("proc/cmdline"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the kernel's command line: %w", err)
	}
	m.parseCommandLine(line)
	return m, nil
}

// parse reads one file. Lines that are not understood are left aside, as modprobe
// does.
func (m *modprobe) parse(r io.Reader, where string) error {
	s := bufio.NewScanner(r)
	before := ""
	for s.Scan() {
		line := before + s.Text()
		before = ""
		if rest, more := strings.CutSuffix(line, `\`); more {
			before = rest
			continue
		}
		m.line(strings.Fields(line), where)
	}
	m.line(strings.Fields(before), where)
	return s.Err()
}

func (m *modprobe) line(f []string, where string) {
	if len(f) < 2 || strings.HasPrefix(f[0], "#") {
		return
	}
	switch name := underscored(f[1]); {
	case f[0] == "blacklist":
		m.barred[name] = where
	case f[0] == "install" && len(f) > 2:
		m.commands[name] = where
	case f[0] == "options":
		m.options[name] = append(m.options[name], f[2:]...)
	case f[0] == "alias" && len(f) > 2:
		m.aliases = append(m.aliases, alias{f[1], underscored(f[2])})
	}
}

// parseCommandLine reads modprobe.blacklist= (for modprobe) and module_blacklist=
// (for the kernel, which then loads the module for nobody), and modules' options.
func (m *modprobe) parseCommandLine(line string) {
	for _, word := range strings.Fields(line) {
		key, value, found := strings.Cut(word, "=")
		switch {
		case key == "modprobe.blacklist" || key == "module_blacklist":
			for name := range strings.SplitSeq(value, ",") {
				m.barred[underscored(name)] = "the kernel's command line"
			}
		case found:
			if module, option, ok := strings.Cut(key, "."); ok && module != "" && option != "" {
				name := underscored(module)
				m.options[name] = append(m.options[name], option+"="+value)
			}
		}
	}
}

// refuses says why a module is not to be loaded for a device; empty: it may be.
func (m *modprobe) refuses(module string) string {
	if where := m.barred[module]; where != "" {
		return "is blacklisted in " + where
	}
	if where := m.commands[module]; where != "" {
		return "has a command of its own in " + where + ", which is not executed here"
	}
	return ""
}
