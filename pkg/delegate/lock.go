package delegate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// lockPoll is how often a lock that another process holds is tried. flock(2)
// cannot wait with a limit.
const lockPoll = 20 * time.Millisecond

// lock keeps two processes from working on one attachment at a time. A runtime
// does not start two, but it can leave one behind: Multus goes on with an ADD
// whose caller has given up, and gets a DEL for it meanwhile.
//
// It is an flock on a file of its own beside the entry, since the entry's file
// is another one after each write. Whoever ends without an entry removes it.
type lock struct {
	ledger ledger
	id     api.AttachmentID
	file   *os.File
	// waited says that another process held it when it was asked for.
	waited bool
}

// lock takes the lock, and creates its file; it waits as long as ctx allows.
func (l ledger) lock(ctx context.Context, id api.AttachmentID) (*lock, error) {
	if err := l.create(); err != nil {
		return nil, err
	}
	return l.take(ctx, id, os.O_RDWR|os.O_CREATE)
}

// lockKnown takes the lock of an attachment that the ledger knows; nil when it
// knows none. It creates nothing for one it has never seen.
func (l ledger) lockKnown(ctx context.Context, id api.AttachmentID) (*lock, error) {
	// For reading, so that a pod can end whose state folder has become read-only.
	k, err := l.take(ctx, id, os.O_RDONLY)
	if errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, nil // no ADD of it can have come so far
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	// No lock file: the entry may be there all the same, brought by a backup.
	if _, err := os.Lstat(l.path(id, entrySuffix)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return l.lock(ctx, id)
}

func (l ledger) take(ctx context.Context, id api.AttachmentID, flags int) (*lock, error) {
	k := &lock{ledger: l, id: id}
	for {
		f, err := os.OpenFile(l.path(id, lockSuffix), flags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the lock of the attachment: %w", err)
		}
		k.file = f
		switch got, err := k.try(); {
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		case got:
			return k, nil
		}
		f.Close()
		select {
		case <-ctx.Done():
			return nil, api.WithCode(api.CodeTryAgain, fmt.Errorf("another process works on the attachment (it holds %s): %w", f.Name(), ctx.Err()))
		case <-time.After(lockPoll):
		}
	}
}

// try takes the lock if it is free. A file that its last holder removed while we
// opened it is no lock: another one may stand in its place.
func (k *lock) try() (bool, error) {
	err := syscall.Flock(int(k.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		k.waited = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var s syscall.Stat_t
	if err := syscall.Fstat(int(k.file.Fd()), &s); err != nil {
		return false, err
	}
	return s.Nlink > 0, nil
}

// unlock gives the lock back, and leaves no file behind where there is no entry.
func (k *lock) unlock() {
	if _, err := os.Lstat(k.ledger.path(k.id, entrySuffix)); errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(k.ledger.path(k.id, lockSuffix)) // a leftover is empty, and used by the next
	}
	// Closing is not enough: a child between fork and exec has the descriptor still,
	// and with it the lock.
	_ = syscall.Flock(int(k.file.Fd()), syscall.LOCK_UN)
	k.file.Close()
}
