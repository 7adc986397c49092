package cnidhcp

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// firstInherited is the first descriptor that systemd hands over (sd_listen_fds(3)).
const firstInherited = 3

// Activated returns the socket that systemd, or somebody who does as it does, has
// opened for this process; nil: there is none. More than one is an error: nobody
// could tell what they are for. The variables are taken out of the environment.
func Activated() (*net.UnixListener, error) {
	pid, fds := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, key := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(key); err != nil {
			return nil, err
		}
	}
	if fds == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(fds)
	switch {
	case err != nil || n < 0:
		return nil, fmt.Errorf("LISTEN_FDS is %q, no number of descriptors", fds)
	case n == 0:
		return nil, nil
	case n > 1:
		return nil, fmt.Errorf("%d sockets were handed over, one is expected: look at ListenStream of the .socket unit", n)
	}
	syscall.CloseOnExec(firstInherited)
	f := os.NewFile(firstInherited, "LISTEN_FD_3")
	defer f.Close() // the listener has a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket that was handed over as descriptor %d: %w", firstInherited, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("socket that was handed over as descriptor %d is of type %s, not unix", firstInherited, l.Addr().Network())
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}
