package aside

import "syscall"

// retried repeats a call that a signal broke off: those of the Go runtime come at
// any time.
func retried(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

func stat(path string, s *syscall.Stat_t) error {
	return retried(func() error { return syscall.Stat(path, s) })
}

func exists(path string) bool {
	var s syscall.Stat_t
	return stat(path, &s) == nil
}

func isFile(path string) bool {
	var s syscall.Stat_t
	return stat(path, &s) == nil && s.Mode&syscall.S_IFMT == syscall.S_IFREG
}

func open(path string, flags int, perm uint32) (fd int, err error) {
	err = retried(func() error {
		fd, err = syscall.Open(path, flags|syscall.O_CLOEXEC, perm)
		return err
	})
	return fd, err
}

func readFile(path string) ([]byte, error) {
	fd, err := open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	return readAll(fd)
}

func readAll(fd int) ([]byte, error) {
	buf := make([]byte, 0, 4096)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, len(buf))...)[:len(buf)]
		}
		n := 0
		err := retried(func() (err error) {
			n, err = syscall.Read(fd, buf[len(buf):cap(buf)])
			return err
		})
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			return buf, nil
		}
		buf = buf[:len(buf)+n]
	}
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n := 0
		err := retried(func() (err error) {
			n, err = syscall.Write(fd, data)
			return err
		})
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// fcntlSetPipeSize is F_SETPIPE_SZ, pipePage what every pipe holds.
const (
	fcntlSetPipeSize = 1031
	pipePage         = 4096
)

// rereadableStdin reads standard input, and puts a pipe that holds the same in its
// place: whoever reads it next, here or after an execve, finds all of it.
func rereadableStdin() ([]byte, *Error) {
	raw, err := readAll(0)
	if err != nil {
		return nil, &Error{codeIO, "read standard input: " + err.Error()}
	}
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return nil, &Error{codeIO, "make a copy of standard input: " + err.Error()}
	}
	defer syscall.Close(p[0])
	defer syscall.Close(p[1])
	if err := fill(p[1], raw); err != nil {
		return nil, &Error{codeIO, "fill the copy of standard input: " + err.Error()}
	}
	if err := syscall.Dup3(p[0], 0, 0); err != nil {
		return nil, &Error{codeIO, "replace standard input: " + err.Error()}
	}
	return raw, nil
}

// fill writes data into a pipe that nobody reads yet.
func fill(pipe int, data []byte) error {
	if len(data) > pipePage {
		// An error shows in the write, if it matters.
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(pipe), fcntlSetPipeSize, uintptr(len(data)))
		if err := syscall.SetNonblock(pipe, true); err != nil {
			return err
		}
	}
	return writeAll(pipe, data)
}

// leaveNote makes data the content of the file name in dir, whole or not at all.
// Unlike those of package atomicfile it need not outlive the power: after a start
// of the node its pod gets a new sandbox, and so a new ADD.
func leaveNote(dir, name string, data []byte) error {
	temp := dir + "/.tmp-" + name
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_TRUNC
	fd, err := open(temp, flags, 0o600)
	if err == syscall.ENOENT { // the first one; the state folder may not be there either
		_ = syscall.Mkdir(dir[:max(lastSlash(dir), 1)], 0o700)
		_ = syscall.Mkdir(dir, 0o700)
		fd, err = open(temp, flags, 0o600)
	}
	if err != nil {
		return err
	}
	err = writeAll(fd, data)
	if closeErr := syscall.Close(fd); err == nil {
		err = closeErr
	}
	if err == nil {
		err = syscall.Rename(temp, dir+"/"+name)
	}
	if err != nil {
		_ = syscall.Unlink(temp)
	}
	return err
}
