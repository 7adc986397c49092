package delegate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestBehind(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"a", "b", "real"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	// Elements of CNI_PATH, below root.
	tests := []struct {
		name string
		own  string
		path []string
		want []string
		err  string
	}{
		{name: "OK behind the only one", own: "a", path: []string{"a", "real"}, want: []string{"real"}},
		{name: "OK not before it", own: "a", path: []string{"b", "a", "real"}, want: []string{"real"}},
		{name: "OK two that stand before a third", own: "b", path: []string{"a", "b", "real"}, want: []string{"real"}},
		{name: "OK there twice", own: "a", path: []string{"a", "a", "b", "real"}, want: []string{"b", "real"}},
		{name: "OK by another name", own: "a", path: []string{"link", "real"}, want: []string{"real"}},
		{name: "OK a folder that does not exist", own: "a", path: []string{"gone", "a", "gone"}, want: []string{"gone"}},
		{name: "OK the last", own: "a", path: []string{"real", "a"}, want: nil},
		{name: "bad not in the path", own: "a", path: []string{"real"}, err: "is not in CNI_PATH"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var path []string
			for _, p := range tt.path {
				path = append(path, filepath.Join(root, p))
			}
			got, err := behind(filepath.Join(root, tt.own), strings.Join(path, ":"))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || api.CodeOf(err) != api.CodeConfig {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range got {
				got[i] = filepath.Base(got[i])
			}
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("folders (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSearchPathHasNoWorkingFolder(t *testing.T) {
	if diff := cmp.Diff([]string{"/a", "/b"}, searchPath(":/a::/b:")); diff != "" {
		t.Errorf("folders (-want +got):\n%s", diff)
	}
}

func TestFindInPath(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"a/macvlan", "b"} { // a/macvlan is a folder, no plugin
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := filepath.Join(root, "b", "macvlan")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(root, "a"), filepath.Join(root, "b")}
	if got, err := (programs{}).FindInPath("macvlan", dirs); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	for _, plugin := range []string{"", "ipvlan", "../b/macvlan"} {
		if got, err := (programs{}).FindInPath(plugin, dirs); err == nil {
			t.Errorf("%q: got %q", plugin, got)
		}
	}
}
