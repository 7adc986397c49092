package trap

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Call is a system call that is about to be made. Its methods look at the process
// that makes it, the program or a child; they are for the time of the decision, while
// that process waits.
type Call struct {
	// Number says which, as unix.SYS_WRITE does.
	Number int
	// Args are its arguments, as they are in the registers: narrower ones may have
	// anything in their upper half.
	Args [6]uint64

	thread uint32
}

// Memory is n bytes at an address; what cannot be read is zero.
func (c Call) Memory(addr uint64, n int) []byte {
	b := make([]byte, n)
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.thread))
	if err != nil {
		return b
	}
	defer f.Close()
	_, _ = f.ReadAt(b, int64(addr)) // less than n at the end of a mapping
	return b
}

// Text is the string at an address, such as a path: as the program wrote it, and no
// longer than a path may be.
func (c Call) Text(addr uint64) string {
	b, _, _ := bytes.Cut(c.Memory(addr, unix.PathMax), []byte{0})
	return string(b)
}

// File is what a descriptor stands for: a path, or a word as "socket:[1234]"; "" when
// it is not open.
func (c Call) File(fd uint64) string {
	path, _ := os.Readlink(c.descriptor(fd))
	return path
}

// Open opens the file of a descriptor once more, with a flag of os.OpenFile.
func (c Call) Open(fd uint64, flag int) (*os.File, error) {
	return os.OpenFile(c.descriptor(fd), flag, 0)
}

func (c Call) descriptor(fd uint64) string { return fmt.Sprintf("/proc/%d/fd/%d", c.thread, int32(fd)) }
