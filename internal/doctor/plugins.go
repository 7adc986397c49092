package doctor

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/internal/install"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// Where the installer puts things below the folder of plugins.
const (
	wrappers = "dhcp-meta-wrappers" // dhcp-meta under other plugins' names
	wrapped  = "dhcp-meta-wrapped"  // originals in whose place dhcp-meta stands
)

// program is a file under a plugin's name.
type program struct {
	path string
	// ours is whether it is dhcp-meta, of the same build as the engine's or not.
	ours, sameBuild bool
	build           string // of another build, as far as it tells
	executable      bool
	// foreign is the machine that it is for, if it is another one.
	foreign string
}

// shelf is what can be seen of folders with plugins.
type shelf interface {
	// folder tells whether a folder can be seen from here.
	folder(dir string) bool
	// names are the files in a folder.
	names(dir string) []string
	// find looks at a file; false where there is none.
	find(path string) (program, bool)
}

func (e *examination) checkPlugins(context.Context) ([]Finding, string) {
	own, err := os.ReadFile(e.cfg.OwnPlugin)
	if err != nil {
		own = nil // then builds are not compared
	}
	s := disk{own}
	if !s.folder(e.cfg.BinDir) {
		return []Finding{{BinDirUnseen, Note, "the node's plugins cannot be looked at: " + e.cfg.BinDir + " is not seen from here",
			"no such folder", "mount it read-only into the engine's container at the same path, or say --bin-dir"}}, ""
	}
	j := judgement{shelf: s, binDir: e.cfg.BinDir, search: []string{e.cfg.BinDir}, networks: e.networks(), dropIn: e.cfg.DHCPSocket != ""}
	if e.cluster != nil {
		j.told = toldToWrap(e.cluster.pods, e.cfg.Installer)
	}
	if e.multus != nil && e.multus.known() {
		j.search, j.known = e.multus.Search(), true
	}
	found := j.run()
	return found, "in order of the search in " + strings.Join(j.search, ", ")
}

// judgement holds what lies in the folders against what is needed there.
type judgement struct {
	shelf
	binDir string
	// search is where Multus looks; known: it said so itself.
	search   []string
	known    bool
	networks []definition
	// told are the plugins that installers on this node are told to wrap, each with the
	// mode.
	told map[string]install.Mode
	// dropIn says that the engine serves those plugins that ask the dhcp plugin.
	dropIn bool
	found  []Finding
	looked map[string]bool // paths that were judged
}

func (j *judgement) run() []Finding {
	j.looked = map[string]bool{}
	var unseen, gone []string
	for _, dir := range j.search {
		switch {
		case j.folder(dir):
		case j.below(dir): // whose parent is seen
			gone = append(gone, dir)
		default:
			unseen = append(unseen, dir)
		}
	}
	if len(unseen) > 0 {
		j.add(SearchPathUnseen, Note, "some of the folders that Multus searches cannot be looked at: "+strings.Join(unseen, ", "),
			"no such folder here", "mount them read-only into the engine's container at the same path to have them checked")
	}
	if len(gone) > 0 {
		j.add(SearchPathGone, Warning, "Multus searches a folder that is not on this node: "+strings.Join(gone, ", "), seen("%s is here, and has no such folder", j.binDir),
			"an installer of another --mode has taken it away: name "+j.binDir+" in its place in Multus's "+configKey+"; or install with --mode search-path, which makes it")
	}
	// What is behind a folder that is not seen may be hidden by it.
	blind := len(unseen) > 0
	if p, ok := j.first(j.search, aside.OwnName); ok {
		j.usable(p, Error)
	} else if !blind {
		j.add(PluginMissing, Error, "the plugin dhcp-meta is not among the node's plugins", seen("it is in none of %s", strings.Join(j.search, ", ")),
			j.unsearched(aside.OwnName, "delete the engine's pod on this node: the init container install of the next one puts it there; without that container: dhcp-engine install --bin-dir "+j.binDir))
	}
	if blind {
		return j.found
	}
	needed := map[string][]definition{} // by plugin
	for _, d := range j.networks {
		for _, name := range d.interposed {
			if j.dropIn && d.asks() { // which takes a dhcp object too
				continue
			}
			if !slices.ContainsFunc(needed[name], func(n definition) bool { return n.name == d.name }) {
				needed[name] = append(needed[name], d)
			}
		}
		j.delegates(d)
	}
	names := slices.Concat(slices.Collect(maps.Keys(needed)), slices.Collect(maps.Keys(j.told)), j.names(filepath.Join(j.binDir, wrappers)), j.names(filepath.Join(j.binDir, wrapped)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == aside.IPAMName {
			continue // ours is the plugin itself, and stands before nobody
		}
		j.interposed(name, needed[name])
	}
	return j.found
}

// delegates looks for the plugins of a network of ours before which nobody has to stand:
// those that dhcp-meta wraps under its own name, and the others of its list.
func (j *judgement) delegates(d definition) {
	if !d.ours || d.unread != nil {
		return
	}
	for _, p := range d.plugins {
		if p.Type == "" || p.Type == ourType || slices.Contains(d.interposed, p.Type) {
			continue
		}
		if got, ok := j.first(j.search, p.Type); ok {
			j.usable(got, Error)
			continue
		}
		j.add(DelegateMissing, Error, "each ADD on network "+d.name+" fails: its plugin "+p.Type+" is not on this node",
			seen("it is in none of %s", strings.Join(j.search, ", ")), j.unsearched(p.Type, "install that plugin on the node, or mend its name, if it is misspelt"+j.there()))
	}
}

// below tells of a folder whether it is in that of the node's plugins, which is seen.
// What the installer makes there are single names.
func (j *judgement) below(dir string) bool {
	rest, ok := strings.CutPrefix(path.Clean(dir), path.Clean(j.binDir)+"/")
	return ok && !strings.ContainsAny(rest, "/:")
}

// searches tells whether Multus looks into a folder.
func (j *judgement) searches(dir string) bool {
	return slices.ContainsFunc(j.search, func(s string) bool { return path.Clean(s) == path.Clean(dir) })
}

// knowing has people tell Multus of the folder of plugins, before they do something else,
// where it was not told.
func (j *judgement) knowing(do string) string {
	if j.searches(j.binDir) {
		return do
	}
	return "set CNI_PATH=" + j.binDir + " in the environment of Multus' daemon; then " + do
}

// unsearched is what to do for a plugin that a search does not find: where it lies in
// the node's folder, only Multus has to be told of that.
func (j *judgement) unsearched(name, otherwise string) string {
	if _, ok := j.find(filepath.Join(j.binDir, name)); ok && !j.searches(j.binDir) {
		return "it is in " + j.binDir + ": set CNI_PATH=" + j.binDir + " in the environment of Multus' daemon"
	}
	return otherwise
}

// before is what to do for a plugin that Multus finds before ours, and that networks
// need. Where nobody has meant ours to stand before it, it is simpler to wrap it.
func (j *judgement) before(name string, networks []definition) string {
	front := filepath.Join(j.binDir, wrappers)
	_, told := j.told[name]
	_, installed := j.find(filepath.Join(front, name))
	wrap := ""
	if !told && !installed && name != ovnType && len(networks) > 0 {
		list := !slices.ContainsFunc(networks, func(d definition) bool { return !d.isList() })
		wrap = wrapping(name, list) + "; or to stand before it: "
	}
	install := fmt.Sprintf("have the engine's init container install call dhcp-engine install --mode search-path --wrap %s", name)
	search := fmt.Sprintf("set \"binDir\": \"%s\" in Multus's %s and CNI_PATH=%s in its daemon's environment; or install with --mode swap where Multus is somebody else's", front, configKey, j.binDir)
	switch {
	case j.searches(front):
		return wrap + "nothing of that name is in " + front + ", where Multus looks first: " + install
	case !installed:
		return wrap + install + ", and " + search
	}
	return search
}

// there names what could have been meant by a name that nobody has.
func (j *judgement) there() string {
	var names []string
	for _, dir := range j.search {
		names = append(names, j.names(dir)...)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return ""
	}
	return ": the node has " + strings.Join(names, ", ")
}

// interposed looks for ours in front of a plugin, and for that plugin behind it.
// networks are those that need it; none: it was installed, and none does yet.
func (j *judgement) interposed(name string, networks []definition) {
	var names []string
	for _, d := range networks {
		names = append(names, d.name)
	}
	slices.Sort(names)
	level, whose := Error, "networks "+strings.Join(names, ", ")+" get no address by DHCP"
	switch len(names) {
	case 0:
		level, whose = Warning, "networks that will be marked get no address by DHCP"
	case 1:
		whose = "network " + names[0] + " gets no address by DHCP"
	}
	first, ok := j.first(j.search, name)
	switch {
	case !ok:
		j.add(BehindMissing, level, "the plugin "+name+" is nowhere on this node", seen("it is in none of %s", strings.Join(j.search, ", ")),
			j.unsearched(name, "is the network plugin installed on this node, and its pod ready? or is the name misspelt"+j.there()))
		return
	case !first.ours:
		if _, swapped := j.find(filepath.Join(filepath.Dir(first.path), wrapped, name)); swapped {
			j.add(SwapUndone, level, whose+": "+name+" was put back over dhcp-meta", seen("%s is not dhcp-meta, and what it stood for is in %s", first.path, wrapped),
				"look at the container keep-installed of the engine's pod, whose work it is to put ours there again")
			return
		}
		if j.told[name] == install.Swap {
			j.add(SwapUndone, level, whose+": "+name+" stands in its own place", seen("%s is not dhcp-meta, and the installer of this node is told to wrap it by --mode swap", first.path),
				"delete the engine's pod on this node: the init container of the next one wraps it; that of the name keep-installed does so at any time")
			return
		}
		if !j.known { // a folder of wrappers may be searched first
			return
		}
		j.add(MultusSearchPath, level, whose+": Multus finds "+name+" before dhcp-meta", seen("the first of %s that has it is %s", strings.Join(j.search, ", "), first.path),
			j.before(name, networks))
		return
	}
	j.usable(first, level)
	j.behind(name, first, level)
}

// behind looks for the real plugin: in its own place among those that were swapped,
// else in the folders that come after ours.
func (j *judgement) behind(name string, first program, level Level) {
	dir, last := filepath.Dir(first.path), 0
	for i := range j.search {
		if path.Clean(j.search[i]) == dir {
			last = i
		}
	}
	behind := append([]string{filepath.Join(dir, wrapped)}, j.search[last+1:]...)
	original, ok := j.first(behind, name)
	switch {
	case !ok:
		j.add(BehindMissing, level, "dhcp-meta stands before "+name+", and nothing behind it: every pod of that plugin fails",
			seen("%s is ours, and %s is in none of %s", first.path, name, strings.Join(behind, ", ")),
			j.knowing("see that the network plugin installs "+name+" in "+j.binDir+" again: restart its pod on this node"))
	case original.ours:
		j.add(BehindOurs, Error, "dhcp-meta stands before itself in place of "+name, seen("%s and %s are both ours", first.path, original.path),
			"have the network plugin install "+name+" again, or dhcp-engine uninstall and install")
	default:
		j.usable(original, level)
	}
}

// usable judges a file that is to be executed, once.
func (j *judgement) usable(p program, level Level) {
	if j.looked[p.path] {
		return
	}
	j.looked[p.path] = true
	switch {
	case !p.executable:
		j.add(PluginNoProgram, level, p.path+" cannot be executed", "no x in its mode, or it is no file", "chmod 755 "+p.path)
	case p.foreign != "":
		j.add(PluginArchitecture, level, p.path+" is for another machine", seen("it is for %s, this node is %s", p.foreign, runtime.GOARCH),
			"install an image of the node's architecture")
	case p.ours && !p.sameBuild:
		j.add(PluginVersion, Warning, p.path+" is dhcp-meta of another build than the engine", seen("it differs from the one beside dhcp-engine (%s)", p.build),
			"delete the engine's pod on this node: the init container of the next one installs the plugin")
	}
}

func (j *judgement) add(id ID, level Level, what, how, do string) {
	j.found = append(j.found, Finding{id, level, what, how, do})
}

// first is what a search in dirs finds.
func (j *judgement) first(dirs []string, name string) (program, bool) {
	for _, dir := range dirs {
		if p, ok := j.find(filepath.Join(dir, name)); ok {
			return p, true
		}
	}
	return program{}, false
}

// disk is the shelf of this file system.
type disk struct {
	own []byte // the plugin of this build
}

func (disk) folder(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir()
}

func (disk) names(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // none where there is no such folder
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func (d disk) find(path string) (program, bool) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return program{}, false
	}
	p := program{path: path}
	if err != nil || !fi.Mode().IsRegular() {
		return p, true
	}
	p.executable = fi.Mode().Perm()&0o111 != 0
	p.foreign = foreign(path)
	if len(d.own) > 0 && fi.Size() == int64(len(d.own)) {
		if content, err := os.ReadFile(path); err == nil && bytes.Equal(content, d.own) {
			p.ours, p.sameBuild = true, true
			return p, true
		}
	}
	if info, err := buildinfo.ReadFile(path); err == nil && strings.HasSuffix(info.Path, "/cmd/dhcp-meta") {
		p.ours, p.sameBuild, p.build = true, len(d.own) == 0, info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				p.build += " " + s.Value
			}
		}
	}
	return p, true
}

// foreign is the machine that an ELF file is for, when it is another one than ours; a
// script is for all.
func foreign(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	own, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer own.Close()
	if f.Machine == own.Machine {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_"))
}
