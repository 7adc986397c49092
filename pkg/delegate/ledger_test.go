package delegate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func testID() api.AttachmentID { return api.AttachmentID{ContainerID: "c1", IfName: "net1"} }

func testEntry(t *testing.T) entry {
	return entry{Network: "vlan77", Netns: "/run/netns/a", Form: wrapping, Conf: mustObject(t, `{"big":9007199254740993,"type":"macvlan"}`)}
}

// files lists a folder; nil when it does not exist.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestLedger(t *testing.T) {
	l := openLedger(t.TempDir())
	if _, ok, err := l.read(testID()); ok || err != nil {
		t.Fatalf("an entry before there is a folder: %v, %v", ok, err)
	}
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	want := testEntry(t)
	if err := l.write(testID(), want); err != nil {
		t.Fatal(err)
	}
	got, ok, err := l.read(testID())
	if !ok || err != nil {
		t.Fatalf("no entry: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"c1:net1.json"}, files(t, l.dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for range 2 { // a second time is no error
		if err := l.remove(testID()); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok, _ := l.read(testID()); ok {
		t.Error("the entry is still there")
	}
}

// A torn file tells no more what the delegate said, but it tells that it ran.
func TestLedgerCorruptEntry(t *testing.T) {
	l := openLedger(t.TempDir())
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.path(testID(), entrySuffix), []byte(`{"network":"vla`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := l.read(testID()); !ok || err != nil {
		t.Errorf("read: %v, %v", ok, err)
	}
	if ids, err := l.list("vlan77"); len(ids) != 0 || err != nil {
		t.Errorf("list: %v, %v", ids, err)
	}
}

func TestLedgerList(t *testing.T) {
	l := openLedger(t.TempDir())
	if ids, err := l.list("vlan77"); ids != nil || err != nil {
		t.Fatalf("without a folder: %v, %v", ids, err)
	}
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	for id, network := range map[string]string{"a:net1": "vlan77", "b:net1": "vlan78", "c:net2": "vlan77"} {
		id, _ := api.ParseAttachmentID(id)
		if err := l.write(id, entry{Network: network}); err != nil {
			t.Fatal(err)
		}
	}
	for _, stray := range []string{"a:net1.lock", ".tmp-1", "notes.json"} {
		if err := os.WriteFile(filepath.Join(l.dir, stray), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := l.list("vlan77")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]api.AttachmentID{{ContainerID: "a", IfName: "net1"}, {ContainerID: "c", IfName: "net2"}}, got); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
}

func TestLockLeavesNothingWithoutAnEntry(t *testing.T) {
	l := openLedger(t.TempDir())
	k, err := l.lock(t.Context(), testID())
	if err != nil {
		t.Fatal(err)
	}
	k.unlock()
	if got := files(t, l.dir); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestLockKnown(t *testing.T) {
	l := openLedger(t.TempDir())
	if k, err := l.lockKnown(t.Context(), testID()); k != nil || err != nil {
		t.Errorf("an unknown attachment: %v, %v", k, err)
	}
	if got := files(t, filepath.Dir(l.dir)); len(got) != 0 {
		t.Errorf("created for an unknown attachment: %v", got)
	}
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	// As after a backup: the entry without its lock.
	if err := l.write(testID(), testEntry(t)); err != nil {
		t.Fatal(err)
	}
	k, err := l.lockKnown(t.Context(), testID())
	if err != nil || k == nil {
		t.Fatalf("a known attachment: %v, %v", k, err)
	}
	k.unlock()
}

func TestLockIsHeldByOne(t *testing.T) {
	l := openLedger(t.TempDir())
	first, err := l.lock(t.Context(), testID())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if _, err := l.lock(short, testID()); !errors.Is(err, context.DeadlineExceeded) || api.CodeOf(err) != api.CodeTryAgain {
		t.Errorf("a lock that is held: %v", err)
	}

	f, err := os.Open(l.path(testID(), lockSuffix))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	second := &lock{ledger: l, id: testID(), file: f}
	if got, err := second.try(); got || err != nil || !second.waited {
		t.Errorf("two hold the lock: %v, %v, waited %v", got, err, second.waited)
	}
	// The first removes the file that the second has open: who locked that would
	// hold something else than the next to come.
	first.unlock()
	if got, err := second.try(); got || err != nil {
		t.Errorf("locked a file that is gone: %v, %v", got, err)
	}
}

// A child between fork and exec has all descriptors of its parent, and an flock is
// free only when the last of them is closed.
func TestLockIsGivenBackWhileAChildHasIt(t *testing.T) {
	l := openLedger(t.TempDir())
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	if err := l.write(testID(), entry{}); err != nil { // so that the lock's file stays
		t.Fatal(err)
	}
	first, err := l.lock(t.Context(), testID())
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(first.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	first.unlock()
	short, cancel := context.WithTimeout(t.Context(), 10*lockPoll)
	defer cancel()
	second, err := l.lock(short, testID())
	if err != nil {
		t.Fatal(err)
	}
	second.unlock()
}

func TestLockIsHandedOn(t *testing.T) {
	l := openLedger(t.TempDir())
	first, err := l.lock(t.Context(), testID())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() {
		k, err := l.lock(t.Context(), testID())
		if err == nil {
			err = l.write(testID(), entry{})
			k.unlock()
		}
		got <- err
	}()
	first.unlock()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c1:net1.json", "c1:net1.lock"}, files(t, l.dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
