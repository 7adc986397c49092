package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another engine answers on the socket.
var ErrInUse = errors.New("another engine")

// Listen opens the engine's socket. The folder is made with mode 0700 when it is
// missing; one that is there must not be writable by others, who could put a
// socket of their own in the place of ours. A socket that a dead engine left is
// replaced; when a live one answers there, the error is ErrInUse with its pid.
//
// The listener accepts root and the engine's own user only, and closes all other
// connections with a line in the log. Its Close removes the socket, if it is
// still the one that it made.
func Listen(path string, log *slog.Logger) (net.Listener, error) {
	l, err := listen(path, log)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, log *slog.Logger) (*listener, error) {
	dir, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() // and unlock
	if err := removeStale(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Before bind: Linux makes the file with the mode of the socket's inode.
		// A chmod after bind would leave a moment in which the umask alone
		// decides, and the umask belongs to the whole process.
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	nl, err := lc.Listen(context.Background(), "unix", path) // binding does not block
	if err != nil {
		return nil, err
	}
	l := &listener{UnixListener: nl.(*net.UnixListener), path: path, log: log}
	l.SetUnlinkOnClose(false) // it would remove a successor's too
	if l.made, err = os.Lstat(path); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Inherited is Listen for a socket that another process has opened, as systemd does
// for a unit that starts when it is needed. Its file stays that one's.
func Inherited(l *net.UnixListener, log *slog.Logger) net.Listener {
	return &listener{UnixListener: l, path: l.Addr().String(), log: log}
}

// lockFolder makes the folder if need be, and keeps other engines from looking
// for a stale socket in it until the file is closed: two of them could each
// remove the other's new one.
func lockFolder(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fi, err := dir.Stat()
	if err == nil && fi.Mode().Perm()&0o022 != 0 {
		err = fmt.Errorf("others may write in %s (mode %v), and could replace the socket: give it a folder of its own, mode 0700", path, fi.Mode())
	}
	if err == nil {
		// Held by engines for the time of this file's functions only.
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// removeStale removes the socket of an engine that has died. Dialing is the only
// way to tell: the file outlives its listener.
func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is something that is no socket (mode %v): remove it, or choose another path", fi.Mode())
	}
	conn, err := net.Dial("unix", path) // does not wait for an accept
	switch {
	case err == nil:
		defer conn.Close()
		who := "pid unknown"
		if cred, err := peer(conn.(*net.UnixConn)); err == nil && cred.Pid > 0 {
			who = fmt.Sprintf("pid %d", cred.Pid) // 0: in a pid namespace out of our sight
		}
		return fmt.Errorf("%w (%s) serves %s", ErrInUse, who, path)
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("find out whether another engine serves it: %w", err)
	}
	return os.Remove(path)
}

// listener is the engine's socket.
type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	log  *slog.Logger
	once sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := peer(conn)
		if err == nil && allowed(cred.Uid) {
			return conn, nil
		}
		conn.Close()
		if err != nil {
			l.log.Warn("refused a connection without a known peer", "socket", l.path, "err", err)
		} else {
			l.log.Warn("refused a connection: only root may connect", "socket", l.path, "uid", cred.Uid, "pid", cred.Pid)
		}
	}
}

// Close removes the file before it stops to listen: in the other order, what it
// removes might be the socket of an engine that took over in between.
func (l *listener) Close() error {
	// Once: while we listen nobody else's file can have our inode number.
	l.once.Do(func() {
		if fi, err := os.Lstat(l.path); err == nil && l.made != nil && os.SameFile(fi, l.made) {
			// An error leaves a stale socket, which the next engine replaces.
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

func allowed(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// peer returns who opened the other end: for a connection that was accepted the
// one who dialed it, for one that was dialed the one who listens.
func peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("read the credentials of the peer: %w", err)
	}
	return cred, nil
}
