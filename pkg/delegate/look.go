package delegate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// seen is what a look into a network namespace shows.
type seen struct {
	// cookie tells the namespace from all others of this boot; 0: there is no such
	// namespace.
	cookie uint64
	// there says that it has the interface.
	there bool
}

// lookInto looks whether a network namespace has an interface. One that is gone is
// no error. It needs two system calls of netlink's many, so it does without.
func lookInto(netns, ifName string) (seen, error) {
	var (
		s    seen
		err  error
		done = make(chan struct{})
	)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		home, openErr := os.Open("/proc/thread-self/ns/net")
		if openErr != nil {
			err = fmt.Errorf("open own netns: %w", openErr)
			return
		}
		defer home.Close()
		s, err = lookFromThread(netns, ifName)
		// A thread that does not come back ends with this goroutine. The process's
		// first one could not, and all who ask for the namespace of the process,
		// skel too, would be told of that one's.
		if backErr := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); backErr == nil {
			runtime.UnlockOSThread()
		} else if err == nil {
			err = fmt.Errorf("come back from netns %s: %w", netns, backErr)
		}
	}()
	<-done
	return s, err
}

// lookFromThread leaves the thread in the namespace.
func lookFromThread(netns, ifName string) (seen, error) {
	f, err := os.Open(netns)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return seen{}, nil
	}
	if err != nil {
		return seen{}, fmt.Errorf("open netns %s: %w", netns, err)
	}
	defer f.Close()
	switch err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); {
	case errors.Is(err, unix.EINVAL):
		return seen{}, nil // the file on which it was mounted is left
	case err != nil:
		return seen{}, fmt.Errorf("enter netns %s: %w", netns, err)
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return seen{}, fmt.Errorf("look into netns %s: %w", netns, err)
	}
	defer unix.Close(sock)
	cookie, err := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return seen{}, fmt.Errorf("ask for the cookie of netns %s: %w", netns, err)
	}
	request, err := unix.NewIfreq(ifName)
	if err != nil {
		return seen{}, fmt.Errorf("look for interface %s: %w", ifName, err)
	}
	switch err := unix.IoctlIfreq(sock, unix.SIOCGIFINDEX, request); {
	case errors.Is(err, unix.ENODEV):
		return seen{cookie: cookie}, nil
	case err != nil:
		return seen{}, fmt.Errorf("look for interface %s in netns %s: %w", ifName, netns, err)
	}
	return seen{cookie: cookie, there: true}, nil
}
