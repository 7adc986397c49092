package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// onVolume calls f with a folder that is a small file system of its own, which
// nobody else sees: a tmpfs in a mount namespace that ends with f. f runs on a
// thread of that namespace; it must not start goroutines, nor call t.Fatal.
func onVolume(t *testing.T, f func(dir string) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" || os.Getenv("DHCP_META_REQUIRE_ROOT") != "" {
			t.Fatal("needs root, to mount a small file system")
		}
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	errC := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with its namespace
		errC <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
				return fmt.Errorf("unshare the mount namespace: %w", err)
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("make mounts private: %w", err)
			}
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128k,mode=0700"); err != nil {
				return fmt.Errorf("mount a tmpfs: %w", err)
			}
			return f(dir)
		}()
	}()
	if err := <-errC; err != nil {
		t.Fatal(err)
	}
}

// wants holds err against what it must be and say.
func wants(what string, err, is error, says ...string) error {
	if !errors.Is(err, is) {
		return fmt.Errorf("%s: error is %w, want %w", what, err, is)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			return fmt.Errorf("%s: error %q does not say %q", what, err, s)
		}
	}
	return nil
}

// sameRecords holds what Load returns against want.
func sameRecords(what string, s *Store, want ...engine.Record) error {
	got, err := s.Load()
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		return fmt.Errorf("%s: records (-want +got):\n%s", what, diff)
	}
	return nil
}

func TestFull(t *testing.T) {
	onVolume(t, func(dir string) error {
		s, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer s.Close()
		old := testRecord()
		if err := errors.Join(s.Put(old), s.Check()); err != nil {
			return err
		}
		ballast := filepath.Join(dir, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("fill the volume: %w", err)
		}
		changed := testRecord()
		changed.Phase = engine.Orphaned
		err = errors.Join(
			wants("Put", s.Put(changed), syscall.ENOSPC, dir, "full", "df"),
			wants("Put of a new one", s.Put(recordOf("new")), syscall.ENOSPC),
			wants("Check", s.Check(), syscall.ENOSPC, dir, "full"),
			sameRecords("while full", s, old),
		)
		// An engine that starts now finds its leases.
		err = errors.Join(err, s.Close())
		again, openErr := Open(dir, slog.New(slog.DiscardHandler))
		if openErr != nil {
			return errors.Join(err, openErr)
		}
		defer again.Close()
		return errors.Join(err,
			sameRecords("while full, opened again", again, old),
			os.Remove(ballast), again.Check(), again.Put(changed),
			sameRecords("with room again", again, changed),
		)
	})
}

func TestReadOnly(t *testing.T) {
	onVolume(t, func(dir string) error {
		s, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		old := testRecord()
		if err := errors.Join(s.Put(old), s.Close()); err != nil {
			return err
		}
		remount := func(flags uintptr) error {
			return syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, "")
		}
		if err := remount(syscall.MS_RDONLY); err != nil {
			return fmt.Errorf("remount read-only: %w", err)
		}
		if s, err = Open(dir, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		defer s.Close()
		_, second := Open(dir, slog.New(slog.DiscardHandler))
		return errors.Join(
			wants("Put", s.Put(recordOf("new")), syscall.EROFS, dir, "read-only"),
			wants("Delete", s.Delete(old.AttachmentID), syscall.EROFS, dir, "read-only"),
			wants("Check", s.Check(), syscall.EROFS, dir, "read-only"),
			wants("second Open", second, ErrLocked),
			sameRecords("read-only", s, old),
			remount(0), s.Check(), s.Put(old),
		)
	})
}

// TestReadOnlyNew: there is nothing to be read either.
func TestReadOnlyNew(t *testing.T) {
	onVolume(t, func(dir string) error {
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("remount read-only: %w", err)
		}
		_, err := Open(dir, slog.New(slog.DiscardHandler))
		return wants("Open", err, syscall.EROFS, dir, "read-only")
	})
}
