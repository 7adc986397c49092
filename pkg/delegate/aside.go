package delegate

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// standAside makes the process the plugin that we stand before, unless its
// network is marked as ours; then it returns nil, with standard input at its
// beginning. It does not return otherwise, but with an error. The engine is not
// asked: a network that is not ours works whatever state it is in.
func standAside(name, dir string) error {
	if readsConfiguration(os.Getenv("CNI_COMMAND")) {
		raw, err := rereadableStdin()
		if err != nil {
			return api.WithCode(types.ErrIOFailure, err)
		}
		// What is no JSON is not ours either: the plugin has the word.
		conf, err := decodeObject("configuration", raw)
		if err == nil && (!interposes(name, conf) || marked(conf)) {
			return nil
		}
	}
	cniPath := os.Getenv("CNI_PATH")
	dirs, err := behind(dir, cniPath)
	if err != nil {
		return err
	}
	path, err := programs{}.FindInPath(name, dirs)
	if err != nil {
		return api.WithCode(api.CodeConfig, fmt.Errorf("%w: those of CNI_PATH %q behind %s", err, cniPath, dir))
	}
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
	return fmt.Errorf("execute %s: %w", path, err)
}

// readsConfiguration tells whether a verb comes with a configuration. VERSION
// has nothing by which a network could be told.
func readsConfiguration(verb string) bool {
	switch verb {
	case "ADD", "DEL", "CHECK", "GC", "STATUS":
		return true
	}
	return false
}

// rereadableStdin reads standard input, and puts a file with the same content in
// its place: whoever reads it next, here or after an execve, finds all of it.
func rereadableStdin() ([]byte, error) {
	raw, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	fd, err := unix.MemfdCreate("cni-stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a copy of standard input: %w", err)
	}
	f := os.NewFile(uintptr(fd), "cni-stdin")
	defer f.Close()
	if _, err := f.Write(raw); err != nil {
		return nil, fmt.Errorf("fill the copy of standard input: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("rewind the copy of standard input: %w", err)
	}
	if err := unix.Dup3(fd, int(os.Stdin.Fd()), 0); err != nil {
		return nil, fmt.Errorf("replace standard input: %w", err)
	}
	return raw, nil
}
