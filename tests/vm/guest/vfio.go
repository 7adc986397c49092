package guest

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/vfio.h.
const (
	vfioSetIOMMU          = ';'<<8 | 102
	vfioGroupSetContainer = ';'<<8 | 104
	vfioGroupGetDevice    = ';'<<8 | 106
	vfioType1             = 1
)

// OpenGroup opens a device's VFIO group, as the first thing that a virtual machine
// does. A second one is refused by EBUSY.
func OpenGroup(d Device) (*os.File, error) {
	return os.OpenFile("/dev/vfio/"+d.Group(), os.O_RDWR, 0)
}

// A Guest is what a virtual machine has of a device while it runs: the group, with an
// IOMMU set up for it, and the device itself.
type Guest struct{ container, group, device *os.File }

// Hold takes a device as a virtual machine does, until Release or the test's end.
func Hold(t testing.TB, d Device) *Guest {
	t.Helper()
	g := new(Guest)
	t.Cleanup(g.Release)
	if err := g.takeGroup(d); err != nil {
		t.Fatalf("take the group of %v: %v", d, err)
	}
	name := append([]byte(d), 0)
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, g.group.Fd(), vfioGroupGetDevice, uintptr(unsafe.Pointer(&name[0])))
	if errno != 0 {
		t.Fatalf("take %v: %v", d, errno)
	}
	g.device = os.NewFile(fd, "vfio device")
	return g
}

// HoldGroup is Hold without the device itself.
func HoldGroup(t testing.TB, d Device) *Guest {
	t.Helper()
	g := new(Guest)
	t.Cleanup(g.Release)
	if err := g.takeGroup(d); err != nil {
		t.Fatalf("take the group of %v: %v", d, err)
	}
	return g
}

func (g *Guest) takeGroup(d Device) error {
	var err error
	if g.container, err = os.OpenFile("/dev/vfio/vfio", os.O_RDWR, 0); err != nil {
		return err
	}
	if g.group, err = OpenGroup(d); err != nil {
		return err
	}
	container := int32(g.container.Fd())
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, g.group.Fd(), vfioGroupSetContainer, uintptr(unsafe.Pointer(&container))); errno != 0 {
		return fmt.Errorf("set the container: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, g.container.Fd(), vfioSetIOMMU, vfioType1); errno != 0 {
		return fmt.Errorf("set the IOMMU: %w", errno)
	}
	return nil
}

// Release lets go of all. It may be repeated.
func (g *Guest) Release() {
	for _, f := range []**os.File{&g.device, &g.group, &g.container} {
		if *f != nil {
			(*f).Close()
			*f = nil
		}
	}
}
