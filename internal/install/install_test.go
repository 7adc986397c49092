package install

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanCheck(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan Plan
		err  string
	}{
		{"OK plain", Plan{Mode: Plain}, ""},
		{"OK drop-in", Plan{Mode: DropIn}, ""},
		{"OK search-path", Plan{SearchPath, []string{overlay, "macvlan"}}, ""},
		{"OK swap", Plan{Swap, []string{overlay}}, ""},
		{"bad mode", Plan{Mode: "link"}, `"link" is no mode`},
		{"bad no mode", Plan{}, `"" is no mode`},
		{"bad nothing to wrap", Plan{Mode: SearchPath}, "needs the name of the plugin"},
		{"bad nothing to swap", Plan{Mode: Swap}, "needs the name of the plugin"},
		{"bad a name too many", Plan{Plain, []string{overlay}}, "wraps no plugin that could be named"},
		{"bad empty name", Plan{Swap, []string{""}}, "is no name of a plugin"},
		{"bad path", Plan{Swap, []string{"a/b"}}, "is no name of a plugin"},
		{"bad parent", Plan{Swap, []string{".."}}, "is no name of a plugin"},
		{"bad hidden name", Plan{Swap, []string{".new-x"}}, "is no name of a plugin"},
		{"bad ourselves", Plan{Swap, []string{"dhcp-meta"}}, "dhcp-meta itself"},
		{"bad our folder", Plan{SearchPath, []string{"dhcp-meta-wrappers"}}, "dhcp-meta itself"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			switch err := tt.plan.Check(); {
			case tt.err == "" && err != nil:
				t.Error(err)
			case tt.err != "":
				(&node{T: t}).fails(err, tt.err)
			}
		})
	}
}

func TestFolderCheck(t *testing.T) {
	n := newNode(t)
	n.ok(n.Check())
	n.fails((&Folder{Dir: n.path("nowhere")}).Check(), "nowhere", "which one does the container runtime use")
	n.fails((&Folder{Dir: n.path("macvlan")}).Check(), "macvlan is no folder")
	n.ok(n.Install(Plan{SearchPath, []string{overlay}}))
	n.fails((&Folder{Dir: n.path(WrappersFolder)}).Check(), "name the one that it lies in")
	plugin, err := os.ReadFile(n.first)
	n.ok(err)
	n.fails((&Folder{Dir: n.Dir, Program: plugin}).Check(), "is not dhcp-meta")
}

// Each mode puts there what it says and nothing else, a second time changes nothing, and
// afterwards the folder is as it was.
func TestModes(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan Plan
		dhcp bool // there is a plugin of that name
		want func(theirs map[string]file) map[string]file
		runs []string
	}{
		{"plain", Plan{Mode: Plain}, true, func(map[string]file) map[string]file {
			return map[string]file{"dhcp-meta": program}
		}, []string{overlay, "dhcp"}},
		{"search-path", Plan{SearchPath, []string{overlay, "bridge"}}, true, func(map[string]file) map[string]file {
			return map[string]file{"dhcp-meta": program, WrappersFolder: folder,
				WrappersFolder + "/" + overlay: program, WrappersFolder + "/bridge": program}
		}, []string{overlay, "bridge"}},
		{"swap", Plan{Swap, []string{overlay}}, true, func(theirs map[string]file) map[string]file {
			return moved(theirs, overlay)
		}, []string{overlay}},
		{"swap of two", Plan{Swap, []string{overlay, "bridge"}}, false, func(theirs map[string]file) map[string]file {
			all := moved(theirs, overlay)
			for name, f := range moved(theirs, "bridge") {
				all[name] = f
			}
			return all
		}, []string{overlay, "bridge"}},
		{"drop-in", Plan{Mode: DropIn}, true, func(theirs map[string]file) map[string]file {
			return moved(theirs, "dhcp")
		}, nil},
		{"drop-in where nobody is", Plan{Mode: DropIn}, false, func(map[string]file) map[string]file {
			return map[string]file{"dhcp-meta": program, "dhcp": program, "dhcp-meta-wrapped": folder}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			if tt.dhcp {
				n.copyFile(n.first, n.path("dhcp"))
			}
			before := n.tree()
			n.ok(n.Uninstall()) // nothing is there
			n.holds(before, nil)
			for range 2 {
				n.ok(n.Install(tt.plan))
				n.holds(before, tt.want(before))
			}
			if said := n.said(); len(said) == 0 {
				t.Error("nothing is logged")
			}
			inodes := n.inodes()
			n.ok(n.Install(tt.plan))
			if diff := cmp.Diff(inodes, n.inodes()); diff != "" {
				t.Errorf("what was there is made anew (-before +after):\n%s", diff)
			}
			n.wantSaid()
			for _, name := range tt.runs {
				if got := n.runs(name); got != "plugin 1" {
					t.Errorf("%s runs as %q", name, got)
				}
			}
			for range 2 {
				n.ok(n.Uninstall())
				n.holds(before, nil)
			}
		})
	}
}

func (n *node) inodes() map[string]uint64 {
	inodes := map[string]uint64{}
	n.ok(filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			inodes[path], err = inode(d)
		}
		return err
	}))
	return inodes
}

func inode(d fs.DirEntry) (uint64, error) {
	fi, err := d.Info()
	if err != nil {
		return 0, err
	}
	return fi.Sys().(*syscall.Stat_t).Ino, nil
}

// From any mode to any other, and back to nothing.
func TestModeChanges(t *testing.T) {
	plans := []Plan{{Mode: Plain}, {SearchPath, []string{overlay}}, {SearchPath, []string{"bridge"}}, {Swap, []string{overlay}}, {Swap, []string{"bridge"}}}
	for _, from := range plans {
		for _, to := range plans {
			n := newNode(t)
			before := n.tree()
			alone := newNode(t)
			alone.ok(alone.Install(to))
			n.ok(n.Install(from))
			n.ok(n.Install(to))
			if diff := cmp.Diff(alone.shape(), n.shape()); diff != "" {
				t.Errorf("%v after %v (-alone +after):\n%s", to, from, diff)
			}
			n.ok(n.Uninstall())
			n.holds(before, nil)
		}
	}
}

// shape is the folder without inodes.
func (n *node) shape() map[string]file {
	all := n.tree()
	for name, f := range all {
		f.Inode = 0
		all[name] = f
	}
	return all
}

// A newer version takes the places of an older one, which is never taken for the plugin.
func TestUpgradeOfOurs(t *testing.T) {
	for _, plan := range []Plan{{Mode: Plain}, {SearchPath, []string{overlay}}, {Swap, []string{overlay}}, {Mode: DropIn}} {
		t.Run(string(plan.Mode), func(t *testing.T) {
			n := newNode(t)
			before := n.tree()
			n.ok((&Folder{Dir: n.Dir, Program: n.older, Log: slog.New(slog.DiscardHandler)}).Install(plan))
			n.ok(n.Install(plan))
			for name, f := range n.tree() {
				if f.Content == "ours, older" {
					t.Errorf("%s is of the older version", name)
				}
			}
			if got := n.runs(overlay); got != "plugin 1" {
				t.Errorf("runs as %q", got)
			}
			n.ok(n.Uninstall())
			n.holds(before, nil)
		})
	}
}

// However a network plugin installs itself anew, it is the newest that is wrapped, and
// that is there in the end. Nothing of ours has another name that it could write into.
func TestNewestOfThePluginIsWrapped(t *testing.T) {
	for name, way := range map[string]string{
		"cp":                      `cp $NEXT ` + overlay,
		"cp -f":                   `cp -f $NEXT ` + overlay,
		"cp --remove-destination": `cp --remove-destination $NEXT ` + overlay,
		"mv":                      `cp $NEXT tmp; mv tmp ` + overlay,
		"install":                 `install -m 755 $NEXT ` + overlay,
		"ln -f":                   `cp $NEXT tmp; ln -f tmp ` + overlay + `; rm tmp`,
		"twice":                   `cp $LAST ` + overlay + `; cp $NEXT tmp; mv tmp ` + overlay,
	} {
		t.Run(name, func(t *testing.T) {
			for _, again := range []bool{true, false} {
				n := newNode(t)
				before := n.tree()
				plan := Plan{Swap, []string{overlay}}
				n.ok(n.Install(plan))
				n.shell(way)
				before[overlay] = n.tree()[overlay]
				if got := before[overlay].Content; got != "plugin 2" {
					t.Fatalf("there is %s", got)
				}
				if again {
					n.ok(n.Install(plan))
					n.holds(before, moved(before, overlay))
					if got := n.runs(overlay); got != "plugin 2" {
						t.Errorf("runs as %q", got)
					}
				}
				n.ok(n.Uninstall())
				n.holds(before, nil)
			}
		})
	}
}

// One that comes to a place where nobody was.
func TestPluginComesLater(t *testing.T) {
	n := newNode(t)
	n.ok(os.Remove(n.path(overlay)))
	before := n.tree()
	plan := Plan{Swap, []string{overlay}}
	n.ok(n.Install(plan))
	n.wantSaid("program is installed: dhcp-meta", "plugin to be wrapped is not there yet: "+overlay)
	n.holds(before, map[string]file{"dhcp-meta": program, "dhcp-meta-wrapped": folder})
	n.shell(`cp $NEXT ` + overlay)
	before[overlay] = n.tree()[overlay]
	n.ok(n.Install(plan))
	n.holds(before, moved(before, overlay))

	n = newNode(t)
	before = n.tree()
	n.ok(n.Install(Plan{Mode: DropIn}))
	n.shell(`cp $NEXT dhcp`)
	before["dhcp"] = n.tree()["dhcp"]
	n.ok(n.Install(Plan{Mode: DropIn}))
	n.holds(before, moved(before, "dhcp"))
	n.ok(n.Uninstall())
	n.holds(before, nil)
}

// What is not ours, or cannot be wrapped, is left alone, and is an error or a line.
func TestForeignFiles(t *testing.T) {
	t.Run("bad another dhcp-meta", func(t *testing.T) {
		n := newNode(t)
		n.copyFile(n.first, n.path("dhcp-meta"))
		before := n.tree()
		n.fails(n.Install(Plan{Swap, []string{overlay}}), n.path("dhcp-meta"), "is not ours")
		n.ok(n.Uninstall())
		n.holds(before, nil)
	})
	t.Run("bad another wrapper", func(t *testing.T) {
		n := newNode(t)
		n.ok(os.Mkdir(n.path(WrappersFolder), 0o755))
		n.copyFile(n.first, n.path(WrappersFolder, overlay))
		before := n.tree()
		n.fails(n.Install(Plan{SearchPath, []string{overlay}}), n.path(WrappersFolder, overlay), "is not ours")
		n.said()
		n.ok(n.Uninstall())
		n.wantSaid("file is not ours and is left alone: "+WrappersFolder+"/"+overlay, "program is removed: dhcp-meta")
		n.holds(before, nil)
	})
	t.Run("bad link", func(t *testing.T) {
		n := newNode(t)
		before := n.tree()
		n.fails(n.Install(Plan{Swap, []string{"ipvlan"}}), n.path("ipvlan"), "no regular file", "search-path")
		n.ok(n.Install(Plan{SearchPath, []string{"ipvlan"}}))
		n.ok(n.Uninstall())
		n.holds(before, nil)
	})
	t.Run("bad link to ourselves", func(t *testing.T) {
		n := newNode(t)
		n.ok(os.Remove(n.path(overlay)))
		n.ok(os.Symlink("dhcp-meta", n.path(overlay)))
		before := n.tree()
		n.fails(n.Install(Plan{Swap, []string{overlay}}), "no regular file")
		n.ok(n.Uninstall())
		n.holds(before, nil)
	})
	t.Run("OK a folder among the wrapped", func(t *testing.T) {
		n := newNode(t)
		n.ok(n.Install(Plan{Swap, []string{overlay}}))
		n.ok(os.Mkdir(n.aside("notes"), 0o755))
		n.said()
		n.ok(n.Uninstall())
		n.wantSaid("file is not ours and is left alone: dhcp-meta-wrapped/notes",
			"plugin is in its place again: "+overlay, "program is removed: dhcp-meta")
	})
}

// A plugin that somebody is writing is not taken before it is whole.
func TestPluginBeingWritten(t *testing.T) {
	n := newNode(t)
	writer, err := os.OpenFile(n.path(overlay), os.O_WRONLY|os.O_TRUNC, 0)
	n.ok(err)
	before := n.tree()
	n.fails(n.Install(Plan{Swap, []string{overlay}}), n.path(overlay), "somebody is writing it")
	n.holds(before, map[string]file{"dhcp-meta": program, "dhcp-meta-wrapped": folder})
	content, err := os.ReadFile(n.next)
	n.ok(err)
	_, err = writer.Write(content)
	n.ok(err)
	n.ok(writer.Chmod(0o600)) // as install(1) has it until it is through
	n.ok(writer.Close())
	n.fails(n.Install(Plan{Swap, []string{overlay}}), n.path(overlay), "may not be executed")
	n.ok(os.Chmod(n.path(overlay), 0o755))
	before = n.tree()
	delete(before, "dhcp-meta")
	delete(before, "dhcp-meta-wrapped")
	n.ok(n.Install(Plan{Swap, []string{overlay}}))
	n.holds(before, moved(before, overlay))
	if got := n.runs(overlay); got != "plugin 2" {
		t.Errorf("runs as %q", got)
	}
}

// Ours among the wrapped, put there by hand, is not the plugin.
func TestOursIsNeverTheOriginal(t *testing.T) {
	n := newNode(t)
	before := n.tree()
	n.ok(n.Install(Plan{Swap, []string{overlay}}))
	n.shell(`cp dhcp-meta dhcp-meta-wrapped/` + overlay)
	n.said()
	n.ok(n.Install(Plan{Swap, []string{overlay}}))
	n.wantSaid("program is removed: dhcp-meta-wrapped/"+overlay,
		"wrapped plugin is missing, its network plugin has to be installed anew: "+overlay)
	n.shell(`cp $NEXT ` + overlay)
	before[overlay] = n.tree()[overlay]
	n.ok(n.Install(Plan{Swap, []string{overlay}}))
	n.holds(before, moved(before, overlay))
	n.ok(n.Uninstall())
	n.holds(before, nil)
}

// Somebody who tidies up, as at the end of another network plugin.
func TestOthersRemoveFiles(t *testing.T) {
	n := newNode(t)
	before := n.tree()
	n.ok(n.Install(Plan{Swap, []string{overlay}}))
	n.ok(os.Remove(n.path(overlay)))
	n.ok(os.Remove(n.path("dhcp-meta")))
	n.ok(n.Uninstall())
	n.holds(before, nil)

	n.ok(n.Install(Plan{Swap, []string{overlay}}))
	n.shell("rm -r dhcp-meta-wrapped")
	n.said()
	n.ok(n.Uninstall())
	delete(before, overlay)
	n.holds(before, nil)
	n.wantSaid("program is removed: dhcp-meta", "program is removed: "+overlay)
}
