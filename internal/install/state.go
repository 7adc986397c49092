package install

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// State is what engine and plugin keep on a node besides their programs.
type State struct {
	// Dir is the state folder, RunDir the one of sockets; empty: left alone.
	Dir, RunDir string
}

// What they keep there; docs/architecture.md has what each is.
var (
	stateNames = []string{"attachments", "borrowed", "delegates", "ended", "passed", "networks.json", "engine.lock"}
	runNames   = []string{"engine.sock", "netns"}
)

// importPrefix begins the name of what an import left that was broken off.
const importPrefix = ".tmp-import-"

// Check tells whether nobody needs the state any more.
func (s State) Check() error {
	if s.Dir == "" {
		return nil
	}
	for name, why := range map[string]string{
		"attachments": "their pods have addresses still, or these wait to be given back",
		"borrowed":    "devices have not gone back to vfio-pci",
	} {
		entries, err := os.ReadDir(filepath.Join(s.Dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s holds %d records (%s, ...): %s; delete the pods while the engine runs, or leave --state-dir out", filepath.Join(s.Dir, name), len(entries), entries[0].Name(), why)
		}
	}
	lock, err := flock(filepath.Join(s.Dir, "engine.lock"), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("dhcp-engine runs, and uses %s: end it first, or leave --state-dir out", s.Dir)
	case err != nil:
		return err
	}
	return lock.Close()
}

// Remove takes both folders away. What is in them and not of ours stays, and they with it.
func (s State) Remove(log *slog.Logger) error {
	return errors.Join(removeFolder(s.Dir, stateNames, log), removeFolder(s.RunDir, runNames, log))
}

func removeFolder(dir string, names []string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	known := make(map[string]bool)
	for _, name := range names {
		known[name] = true
	}
	left := false
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !known[e.Name()] && !strings.HasPrefix(e.Name(), importPrefix) {
			log.Warn("file is not ours and is left alone", "file", path)
			left = true
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if left {
		return nil
	}
	err = os.Remove(dir)
	if errors.Is(err, unix.EBUSY) { // a container has it mounted
		log.Warn("folder is empty and stays, it is mounted here", "folder", dir)
		return nil
	}
	if err == nil {
		log.Info("folder is removed", "folder", dir)
	}
	return err
}
