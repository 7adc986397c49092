package nic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// ownNetns is the namespace of the calling thread. The usual /proc/self means
// the main thread, which need not be in the same one.
const ownNetns = "/proc/thread-self/ns/net"

// maxSymlinks is how many symbolic links may stand at the end of a path, one
// pointing to the next; the kernel's own limit is 40.
const maxSymlinks = 8

// namespaceID tells two namespaces apart as long as both exist, which is so for
// those of the host. For others the cookie is used: inode numbers are handed
// out again.
type namespaceID struct{ dev, ino uint64 }

func namespaceAt(path string) (namespaceID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return namespaceID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return idOf(&st), nil
}

func idOf(st *unix.Stat_t) namespaceID {
	return namespaceID{dev: uint64(st.Dev), ino: st.Ino}
}

// visit runs do in the namespace. The Netns that do gets has its cookie filled
// in. What do opens stays open: it must leave nothing that it does not hand
// over. do blocks a thread, so it waits for nothing but the kernel.
func (l *Links) visit(ctx context.Context, ns engine.Netns, do func(engine.Netns) error) error {
	done, err := take(ctx, l.visits)
	if err != nil {
		return fmt.Errorf("enter netns %s: %w", ns.Path, err)
	}
	defer done()
	target, err := l.openNetns(ns)
	if err != nil {
		return err
	}
	defer target.Close()
	errC := make(chan error, 1)
	// A goroutine of its own, because it may have to take its thread with it.
	go func() {
		errC <- l.inside(target, func() error {
			cookie, err := netnsCookie()
			if err != nil {
				return fmt.Errorf("identify netns %s: %w", ns.Path, err)
			}
			if ns.Cookie != 0 && ns.Cookie != cookie {
				return fmt.Errorf("netns %s: another namespace stands there now: %w", ns.Path, engine.ErrGone)
			}
			return do(engine.Netns{Path: ns.Path, Cookie: cookie})
		})
	}()
	return <-errC
}

// inside calls do on a thread in the target namespace. It must be the last
// thing its goroutine does: when the thread cannot go back to where it came
// from, it stays locked, so that it ends together with the goroutine and
// nothing else ever runs on it.
func (l *Links) inside(target *os.File, do func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(ownNetns)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own netns: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter netns %s: %w", target.Name(), lacking(unix.CAP_SYS_ADMIN, err))
	}
	err = do()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		l.log.Error("thread cannot leave a netns and is thrown away", "netns", target.Name(), "err", back)
		return err
	}
	runtime.UnlockOSThread()
	return err
}

// netnsCookie returns the cookie of the calling thread's namespace. A socket is
// the only thing that the kernel tells it of.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
	}
	return cookie, nil
}

// openNetns opens the namespace and checks what it got, not what the path
// looked like before: a path may change between two looks. What is there in
// place of a namespace that was known once means that the known one is gone.
func (l *Links) openNetns(ns engine.Netns) (*os.File, error) {
	f, err := l.openBelowRoots(ns.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open netns %s: %w: %w", ns.Path, engine.ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open netns %s: %w", ns.Path, err)
	}
	if err := l.checkNetns(f); err != nil {
		f.Close()
		if ns.Cookie != 0 {
			return nil, fmt.Errorf("open netns %s: %w: %w", ns.Path, engine.ErrGone, err)
		}
		return nil, fmt.Errorf("open netns %s: %w", ns.Path, err)
	}
	return f, nil
}

// openBelowRoots opens the file at path if the folder that really holds it is
// an allowed root or below one. A symbolic link at the end is followed by the
// same rule.
func (l *Links) openBelowRoots(path string) (*os.File, error) {
	next := path
	for range maxSymlinks {
		if !filepath.IsAbs(next) {
			return nil, errors.New("path is not absolute")
		}
		// No Clean: "a/../b" is not "b" where a is a symbolic link.
		dir, base := filepath.Split(strings.TrimRight(next, "/"))
		if base == "" {
			return nil, errors.New("path is no file")
		}
		f, link, err := l.openEntry(dir, base)
		if err != nil || f != nil {
			return f, err
		}
		if !filepath.IsAbs(link) {
			link = dir + link
		}
		next = link
	}
	return nil, errors.New("path has too many symbolic links")
}

// openEntry opens base in folder dir. When it is a symbolic link it returns
// where that points to instead of a file.
func (l *Links) openEntry(dir, base string) (_ *os.File, link string, _ error) {
	// Magic links on the way, such as /proc/PID/root, lead into the mounts of
	// other processes, where "/run/netns" is theirs and not ours.
	folder, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, "", fmt.Errorf("%s leads through a link into another process", dir)
	}
	if err != nil {
		return nil, "", &fs.PathError{Op: "open folder", Path: dir, Err: err}
	}
	defer unix.Close(folder)
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(folder))
	if err != nil {
		return nil, "", err
	}
	if !l.allowed(real) {
		return nil, "", fmt.Errorf("%s is not below an allowed root (%s)", real, strings.Join(l.roots, ", "))
	}
	flags := unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOFOLLOW
	if isProcNS(folder, real) {
		// /proc/PID/ns/net is a magic link: what it reads as is no path, and
		// following it opens the namespace itself.
		flags &^= unix.O_NOFOLLOW
	}
	name := filepath.Join(real, base)
	fd, err := unix.Openat(folder, base, flags, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(folder, base, buf)
		if err != nil {
			return nil, "", &fs.PathError{Op: "readlink", Path: name, Err: err}
		}
		return nil, string(buf[:n]), nil
	case err != nil:
		// What an object of another process is, only a tracer may know.
		return nil, "", lacking(unix.CAP_SYS_PTRACE, &fs.PathError{Op: "open", Path: name, Err: err})
	}
	return os.NewFile(uintptr(fd), name), "", nil
}

// isProcNS tells whether the folder is the ns folder of a process.
func isProcNS(folder int, path string) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(folder, &st) == nil && st.Type == unix.PROC_SUPER_MAGIC && filepath.Base(path) == "ns"
}

// allowed tells whether the folder, a path without symbolic links, is one of
// the roots or below one. Roots may be symbolic links, as /var/run is.
func (l *Links) allowed(folder string) bool {
	return slices.ContainsFunc(l.roots, func(root string) bool {
		real, err := filepath.EvalSymlinks(root)
		if err != nil {
			return false
		}
		rel, err := filepath.Rel(real, folder)
		return err == nil && filepath.IsLocal(rel)
	})
}

// checkNetns refuses what is no network namespace, or is the host's.
func (l *Links) checkNetns(f *os.File) error {
	fd := int(f.Fd())
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(fd, &fsys); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fsys.Type != unix.NSFS_MAGIC {
		return errors.New("file is no network namespace")
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return os.NewSyscallError("ioctl NS_GET_NSTYPE", err)
	}
	if kind != unix.CLONE_NEWNET {
		return errors.New("file is a namespace, but no network namespace")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if slices.Contains(l.hosts, idOf(&st)) {
		return errors.New("path is the host's own network namespace, which is never entered")
	}
	return nil
}
