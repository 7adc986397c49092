package vfio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// locks are those of sriov-cni, so that the two never change one device at the same
// time. It keeps a file named after the device whose content is the network
// namespace of the pod that has it, and takes a lock (flock) for each ADD and DEL:
// today of vf_lock/<device>.lock, in older releases of the first file itself.
type locks struct{ dir string }

// lockPoll is how often a lock is tried: nobody tells when one is free.
const lockPoll = 50 * time.Millisecond

// take waits for the device, for lockLimit at most.
func (l locks) take(ctx context.Context, address string) (done func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockLimit, errors.New("sriov-cni works on it and does not end"))
	defer cancel()
	folder := filepath.Join(l.dir, "vf_lock")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of sriov-cni's locks: %w", err)
	}
	var held []*os.File
	done = func() {
		for _, f := range held {
			f.Close()
		}
	}
	for path, flags := range map[string]int{
		filepath.Join(folder, address+".lock"): os.O_CREATE | os.O_RDWR,
		// It must not be made: that it is there says that a pod has the device.
		filepath.Join(l.dir, address): os.O_RDWR,
	} {
		f, err := lock(ctx, path, flags)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			done()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		held = append(held, f)
	}
	return done, nil
}

func lock(ctx context.Context, path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, os.NewSyscallError("flock", err)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// owner is the namespace of the pod that sriov-cni has given the device to, when
// that is another one than netns and still there; empty: nobody's.
func (l locks) owner(address, netns string) (string, error) {
	b, err := os.ReadFile(filepath.Join(l.dir, address))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("see which pod sriov-cni has given %s to: %w", address, err)
	}
	path := strings.TrimSpace(string(b))
	theirs, err := os.Stat(path)
	if path == "" || path == netns || err != nil {
		return "", nil // sriov-cni itself takes a namespace that is gone for the end of the pod
	}
	if ours, err := os.Stat(netns); err == nil && os.SameFile(ours, theirs) {
		return "", nil
	}
	return path, nil
}
