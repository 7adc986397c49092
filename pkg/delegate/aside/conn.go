package aside

import (
	"syscall"
	"time"
)

// conn is a connection to a unix socket whose calls all end by one deadline. They
// block in the kernel: a poller, and the goroutines around it, would take longer to
// get ready than the engine to answer.
type conn struct {
	fd       int
	deadline time.Time
}

func dial(socket string, deadline time.Time) (conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return conn{}, err
	}
	c := conn{fd, deadline}
	// An engine that hangs has its connections accepted by the kernel until the
	// backlog is full; then connect waits, as long as a write would.
	err = c.bounded(syscall.SO_SNDTIMEO, func() error {
		return syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	})
	if err != nil {
		syscall.Close(fd)
	}
	return c, err
}

// bounded makes a call with what is left of the time, and again when a signal broke
// it off.
func (c conn) bounded(option int, call func() error) error {
	for {
		left := time.Until(c.deadline)
		if left <= 0 {
			return syscall.ETIMEDOUT
		}
		t := syscall.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, option, &t); err != nil {
			return err
		}
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

func (c conn) write(data []byte) error {
	for len(data) > 0 {
		n := 0
		err := c.bounded(syscall.SO_SNDTIMEO, func() (err error) {
			n, err = syscall.SendmsgN(c.fd, data, nil, nil, syscall.MSG_NOSIGNAL)
			return err
		})
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// read returns 0 when the other end has closed.
func (c conn) read(buf []byte) (n int, err error) {
	err = c.bounded(syscall.SO_RCVTIMEO, func() (err error) {
		n, err = syscall.Read(c.fd, buf)
		return err
	})
	return n, err
}
