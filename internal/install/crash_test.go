package install

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The environment of a child that kills itself before the n-th change that it makes.
const (
	crashAt   = "INSTALL_TEST_CRASH_AT"
	crashDir  = "INSTALL_TEST_DIR"
	crashFile = "INSTALL_TEST_PROGRAM"
	crashMode = "INSTALL_TEST_MODE" // empty: uninstall
	crashWrap = "INSTALL_TEST_WRAP"
)

func crash() {
	at, err := strconv.Atoi(os.Getenv(crashAt))
	if err != nil {
		panic(err)
	}
	program, err := os.ReadFile(os.Getenv(crashFile))
	if err != nil {
		panic(err)
	}
	f := &Folder{Dir: os.Getenv(crashDir), Program: program, Log: slog.New(slog.DiscardHandler)}
	changes := 0
	f.before = func() {
		if changes++; changes == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal may take a moment
		}
	}
	mode := Mode(os.Getenv(crashMode))
	plan := Plan{Mode: mode}
	if mode == SearchPath || mode == Swap {
		plan.Wrap = []string{os.Getenv(crashWrap)}
	}
	if mode == "" {
		err = f.Uninstall()
	} else {
		err = f.Install(plan)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child makes the changes of a mode, or uninstalls, and dies before one of them; it tells
// whether it died.
func (n *node) child(mode Mode, at int) (died bool) {
	n.Helper()
	c := exec.Command(n.programs.child)
	c.Env = append(os.Environ(), crashAt+"="+strconv.Itoa(at), crashDir+"="+n.Dir, crashFile+"="+n.dir+"/newer",
		crashMode+"="+string(mode), crashWrap+"="+overlay)
	out, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		n.Fatalf("%s, to be killed at %d: %v: %s", mode, at, err, out)
	}
	return false
}

// An installer that is killed between any two of its changes leaves a plugin that works,
// the newest, and whoever comes next makes it what it should be, or what it was.
func TestCrash(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(n *node)
		mode  Mode
		runs  string
	}{
		{"swap", func(*node) {}, Swap, "plugin 1"},
		{"swap again", func(n *node) {
			n.ok(n.Install(Plan{Swap, []string{overlay}}))
			n.shell(`cp $NEXT ` + overlay)
		}, Swap, "plugin 2"},
		{"swap of another version of ours", func(n *node) {
			n.ok((&Folder{Dir: n.Dir, Program: n.older, Log: n.Log}).Install(Plan{Swap, []string{overlay}}))
		}, Swap, "plugin 1"},
		{"from swap to search-path", func(n *node) { n.ok(n.Install(Plan{Swap, []string{overlay}})) }, SearchPath, "plugin 1"},
		{"from search-path to swap", func(n *node) { n.ok(n.Install(Plan{SearchPath, []string{overlay}})) }, Swap, "plugin 1"},
		{"drop-in", func(n *node) { n.copyFile(n.first, n.path("dhcp")) }, DropIn, "plugin 1"},
		{"drop-in where nobody is", func(*node) {}, DropIn, "plugin 1"},
		{"uninstall", func(n *node) { n.ok(n.Install(Plan{Swap, []string{overlay}})) }, "", "plugin 1"},
		{"uninstall of an older one aside", func(n *node) {
			n.ok(n.Install(Plan{Swap, []string{overlay}}))
			n.shell(`cp $NEXT ` + overlay)
		}, "", "plugin 2"},
		{"uninstall where somebody has removed ours", func(n *node) {
			n.ok(n.Install(Plan{Swap, []string{overlay}}))
			n.ok(os.Remove(n.path(overlay)))
		}, "", "plugin 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := map[Mode]map[string]file{}
			for _, next := range []Mode{tt.mode, ""} {
				n := newNode(t)
				tt.setup(n)
				n.child(next, 0)
				want[next] = n.shape()
			}
			for at, died := 1, true; died; at++ {
				for next := range want {
					n := newNode(t)
					tt.setup(n)
					names := n.shape()
					died = n.child(tt.mode, at)
					if _, was := names["dhcp"]; was {
						n.runs("dhcp") // as itself, or as ours
					}
					if _, was := names[overlay]; was {
						if got := n.runs(overlay); got != tt.runs {
							t.Errorf("killed at change %d: runs as %q, want %q", at, got, tt.runs)
						}
					}
					n.child(next, 0)
					if diff := cmp.Diff(want[next], n.shape()); diff != "" {
						t.Errorf("killed at change %d, then %q (-want +got):\n%s", at, next, diff)
					}
					n.ok(os.RemoveAll(n.Dir)) // there are hundreds
				}
				if !died && at < 4 {
					t.Errorf("only %d changes were made", at-1)
				}
			}
		})
	}
}
