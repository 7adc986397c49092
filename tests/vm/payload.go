package vm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// payload writes a second file system for the kernel to unpack over the first one:
// files is what stands below /payload, by name there, start is the program that init
// executes.
func payload(w io.Writer, files map[string]string, start string) error {
	c := cpio{w: w}
	c.add("payload/start", 0o100755, []byte(start))
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	folders := map[string]bool{"payload": true}
	for _, name := range names {
		b, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		info, err := os.Stat(files[name])
		if err != nil {
			return err
		}
		name = "payload/" + name
		if dir := filepath.Dir(name); !folders[dir] {
			folders[dir] = true
			c.add(dir, 0o040755, nil)
		}
		c.add(name, 0o100000|uint32(info.Mode().Perm()), b)
	}
	c.add("TRAILER!!!", 0, nil)
	return c.err
}

// cpio is an archive of the "newc" form, which is what the kernel reads
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	w     io.Writer
	inode int
	err   error
}

func (c *cpio) add(name string, mode uint32, data []byte) {
	c.inode++
	links := 1
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	c.write([]byte(header + name + "\x00"))
	c.pad(len(header) + len(name) + 1)
	c.write(data)
	c.pad(len(data))
}

// pad fills up to four bytes.
func (c *cpio) pad(n int) { c.write(make([]byte, (4-n%4)%4)) }

func (c *cpio) write(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
	}
}
