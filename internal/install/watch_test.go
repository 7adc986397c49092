package install

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// patience bounds what a test waits for.
const patience = 30 * time.Second

// event is one of inotify as the kernel writes it.
func event(mask uint32, name string) []byte {
	var b bytes.Buffer
	padded := make([]byte, (len(name)+16)/16*16)
	copy(padded, name)
	if name == "" {
		padded = nil
	}
	for _, field := range []uint32{1, mask, 0, uint32(len(padded))} {
		_ = binary.Write(&b, binary.NativeEndian, field) // to memory
	}
	return append(b.Bytes(), padded...)
}

func TestParse(t *testing.T) {
	names := []string{overlay, "dhcp"}
	for _, tt := range []struct {
		name   string
		events [][]byte
		want   []string
		err    string
	}{
		{name: "OK one", events: [][]byte{event(unix.IN_CLOSE_WRITE, overlay)}, want: []string{overlay}},
		{name: "OK once each", events: [][]byte{
			event(unix.IN_MOVED_TO, overlay), event(unix.IN_MOVED_TO, "dhcp-meta"), event(unix.IN_CLOSE_WRITE, "dhcp"), event(unix.IN_ATTRIB, overlay),
		}, want: []string{overlay, "dhcp"}},
		{name: "OK others", events: [][]byte{event(unix.IN_CLOSE_WRITE, "macvlan"), event(unix.IN_ATTRIB, "")}},
		{name: "OK some were lost", events: [][]byte{event(unix.IN_Q_OVERFLOW, "")}, want: names},
		{name: "bad the folder is gone", events: [][]byte{event(unix.IN_MOVED_TO, overlay), event(unix.IN_DELETE_SELF, "")}, err: "there no longer"},
		{name: "bad it is another one", events: [][]byte{event(unix.IN_MOVE_SELF, "")}, err: "there no longer"},
		{name: "bad its file system is gone", events: [][]byte{event(unix.IN_UNMOUNT, ""), event(unix.IN_IGNORED, "")}, err: "there no longer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(bytes.Join(tt.events, nil), names)
			if tt.err != "" {
				(&node{T: t}).fails(err, tt.err)
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("names (-want +got), %v:\n%s", err, diff)
			}
		})
	}
}

// A folder that goes away ends the watch: what comes in its place is another one.
func TestWatchEndsWithItsFolder(t *testing.T) {
	n := newNode(t)
	ended := make(chan error, 1)
	go func() { ended <- n.Watch(t.Context(), Plan{Swap, []string{overlay}}) }()
	n.await(func() bool { return n.unwatchedErr() != nil })
	n.ok(os.Rename(n.Dir, n.Dir+".old"))
	defer os.RemoveAll(n.Dir + ".old")
	select {
	case err := <-ended:
		n.fails(err, n.Dir, "there no longer")
	case <-time.After(patience):
		t.Fatal("the watch goes on")
	}
}

func (n *node) unwatchedErr() error {
	err := n.unwatched()
	if err != nil && !strings.Contains(err.Error(), "kept wrapped") {
		return nil // not there yet
	}
	return err
}

func (n *node) await(holds func() bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	for tick := time.NewTicker(time.Millisecond); !holds(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			n.Fatal("waited in vain")
		}
	}
}

// What cannot be wrapped is told once, unless somebody will soon be through with it.
func TestRewrapTellsOnce(t *testing.T) {
	n := newNode(t)
	failed := make(map[string]string)
	n.ok(os.Chmod(n.path(overlay), 0o600))
	n.rewrap(overlay, failed)
	n.wantSaid()
	for range 2 {
		n.rewrap(overlay, failed)
	}
	n.wantSaid("plugin is not wrapped, trying again: " + overlay)
	n.ok(os.Chmod(n.path(overlay), 0o755))
	n.rewrap(overlay, failed)
	n.wantSaid("plugin is wrapped: " + overlay)
	if len(failed) > 0 {
		t.Errorf("to be tried again: %v", failed)
	}
	n.ok(os.Remove(n.path(overlay)))
	n.ok(os.Symlink("macvlan", n.path(overlay)))
	for range 2 {
		n.rewrap(overlay, failed)
	}
	n.wantSaid("plugin is not wrapped, trying again: " + overlay)
}
