package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// levels are what findings say, without words.
func levels(found []Finding) map[ID]Level {
	m := map[ID]Level{}
	for _, f := range found {
		m[f.ID] = f.Level
	}
	return m
}

// finds checks that just these were found, each explained.
func finds(t *testing.T, found []Finding, want ...ID) {
	t.Helper()
	var have []ID
	for _, f := range found {
		have = append(have, f.ID)
		if f.What == "" || f.How == "" || f.Do == "" {
			t.Errorf("%s is not explained: %+v", f.ID, f)
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("found %v, want %v: %+v", have, want, found)
	}
}

func TestKernel(t *testing.T) {
	const all = 1<<12 | 1<<13 | 1<<21 // CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN
	well := kernel{release: "5.14.0-427.el9.x86_64", capabilities: all, promote: true}
	for name, tt := range map[string]struct {
		change func(*kernel)
		want   []ID
	}{
		"well":              {func(*kernel) {}, nil},
		"Ubuntu 20.04":      {func(k *kernel) { k.release = "5.4.0-216-generic" }, []ID{KernelOld}},
		"RHEL 8":            {func(k *kernel) { k.release = "4.18.0-553.el8" }, []ID{KernelOld}},
		"a later one":       {func(k *kernel) { k.release = "6.1.0-28-amd64" }, nil},
		"odd release":       {func(k *kernel) { k.release = "custom" }, nil},
		"only NET_ADMIN":    {func(k *kernel) { k.capabilities = 1 << 12 }, []ID{CapabilityMissing}},
		"secondaries go":    {func(k *kernel) { k.promote = false }, []ID{PromoteOff}},
		"another boot time": {func(k *kernel) { k.bootOffset = "86400 s" }, []ID{BootTimeOffset}},
	} {
		t.Run(name, func(t *testing.T) {
			k := well
			tt.change(&k)
			finds(t, k.judge(), tt.want...)
		})
	}
}

func TestBootOffset(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "monotonic           0         0\nboottime            0         0\n": "",
		"monotonic           0         0\nboottime         3600         0\n": "3600 s",
	} {
		if got := bootOffset([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// The root of a container, and what the DaemonSet mounts into it.
const containerMounts = `
700 600 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a
701 700 0:60 / /proc rw - proc proc rw
702 700 8:1 /run/dhcp-meta /run/dhcp-meta rw - tmpfs tmpfs rw
703 700 8:2 /var/lib/dhcp-meta /var/lib/dhcp-meta rw - ext4 /dev/vda rw
704 700 0:25 /netns /run/netns rw master:7 - tmpfs tmpfs rw
705 700 8:2 /with\040space /mnt/with\040space rw - ext4 /dev/vda rw
`

func TestMounts(t *testing.T) {
	all := parseMounts(containerMounts)
	for path, want := range map[string]string{
		"/run/dhcp-meta/engine.sock": "/run/dhcp-meta", "/run/netns": "/run/netns", "/run/netnsx": "/",
		"/opt/cni/bin": "/", "/mnt/with space/x": "/mnt/with space",
	} {
		if m, ok := holder(all, path); !ok || m.point != want {
			t.Errorf("%s is on %+v, want %s", path, m, want)
		}
	}
	finds(t, judgeHostPath(all, "/var/lib/dhcp-meta", "x"))
	finds(t, judgeHostPath(all, "/var/lib/other", "x"), HostPath)
	finds(t, judgeHostPath(parseMounts("1 0 8:1 / / rw shared:1 - ext4 /dev/vda rw\n"), "/var/lib/other", "x"))
}

func TestNamespaces(t *testing.T) {
	mounts := parseMounts(containerMounts)
	private := parseMounts("1 0 0:50 / / rw - overlay overlay rw\n2 1 0:25 /netns /run/netns rw - tmpfs tmpfs rw\n")
	for name, tt := range map[string]struct {
		n    namespaces
		want []ID
	}{
		"well":           {namespaces{roots: []string{"/run/netns"}, mounts: mounts, seen: 3, pods: 3}, nil},
		"nobody asked":   {namespaces{roots: []string{"/run/netns"}, mounts: mounts, pods: -1}, nil},
		"no folder":      {namespaces{mounts: mounts, pods: 3}, []ID{NetnsRootMissing}},
		"no propagation": {namespaces{roots: []string{"/run/netns"}, mounts: private, seen: 3, pods: 3}, []ID{NetnsPrivate}},
		"not mounted":    {namespaces{roots: []string{"/run/ns"}, mounts: mounts, pods: 0}, []ID{HostPath}},
		"lost":           {namespaces{roots: []string{"/run/netns"}, mounts: mounts, pods: -1, lost: []string{"/run/netns/x"}}, []ID{NetnsUnseen}},
		"fewer":          {namespaces{roots: []string{"/run/netns"}, mounts: mounts, seen: 2, pods: 3}, []ID{NetnsFew}},
	} {
		t.Run(name, func(t *testing.T) { finds(t, tt.n.judge(), tt.want...) })
	}
}

func TestFolder(t *testing.T) {
	well := folder{path: "/s", mode: 0o700, bytes: 1 << 30, files: 1 << 20, total: 1 << 21}
	for name, tt := range map[string]struct {
		change func(*folder)
		want   []ID
	}{
		"well":             {func(*folder) {}, nil},
		"no room":          {func(f *folder) { f.bytes = 1 << 20 }, []ID{StateFull}},
		"no inodes":        {func(f *folder) { f.files = 3 }, []ID{StateFull}},
		"inodes unbounded": {func(f *folder) { f.files, f.total = 0, 0 }, nil}, // btrfs
		"memory":           {func(f *folder) { f.memory = true }, []ID{StateMemory}},
		"read-only":        {func(f *folder) { f.readOnly = fs.ErrPermission }, []ID{StateReadOnly}},
		"open":             {func(f *folder) { f.mode = 0o770 }, []ID{StateOpen}},
	} {
		t.Run(name, func(t *testing.T) {
			f := well
			tt.change(&f)
			finds(t, f.judge(), tt.want...)
		})
	}
}

// contains tells whether all words are in a text.
func contains(text string, words ...string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

func TestReadiness(t *testing.T) {
	wrong := errors.New("the state folder is full")
	finds(t, readiness(nil, nil))
	finds(t, readiness(nil, wrong), EngineLimited)
	finds(t, readiness(wrong, wrong), EngineNotReady)
}

func TestMasters(t *testing.T) {
	state := func(name string) (bool, error) {
		switch name {
		case "eth1":
			return true, nil
		case "eth2":
			return false, nil
		}
		return false, errors.New("no such interface")
	}
	of := func(p pluginConf) definition { return definition{name: "a/b", plugins: []pluginConf{p}} }
	finds(t, judgeMasters(of(pluginConf{Type: "macvlan", Master: "eth1"}), state))
	finds(t, judgeMasters(of(pluginConf{Type: "macvlan", Master: "eth2"}), state), MasterDown)
	finds(t, judgeMasters(of(pluginConf{Type: "macvlan", Master: "eth9"}), state), MasterMissing)
	finds(t, judgeMasters(of(pluginConf{Type: "macvlan", Master: "eth0", InContainer: true}), state))
	finds(t, judgeMasters(of(pluginConf{Type: "bridge"}), state))
}

func TestMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "networks.json")
	networks := []definition{{name: "b/a", annotated: true}, {name: "a/b", annotated: true}, {name: "c/c"}}
	finds(t, judgeMarks(networks, path), MarksStale)
	for text, want := range map[string][]ID{
		`{"marked":["a/b","b/a"]}`: nil, `{"marked":["a/b"]}`: {MarksStale}, `{"marked":`: {MarksStale},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		finds(t, judgeMarks(networks, path), want...)
	}
}

// An ADD has time for a ping check, a first DISCOVER that is lost, and our own probes.
func TestSlowestADD(t *testing.T) {
	for detection, want := range map[network.ConflictDetection]time.Duration{
		network.ConflictDetectionOff: 7 * time.Second, network.ConflictDetectionFast: 7 * time.Second, network.ConflictDetectionFull: 14 * time.Second,
	} {
		if got := slowest(network.Settings{ConflictDetection: detection}); got != want {
			t.Errorf("%s: %v, want %v", detection, got, want)
		}
	}
}

func TestOVNAway(t *testing.T) {
	away := errors.New("no such socket")
	finds(t, judgeOVNAway("auto", nil, away), OVNAbsent)
	finds(t, judgeOVNAway("auto", []string{"a/b"}, away), OVNUnreachable)
	finds(t, judgeOVNAway("tcp:10.0.0.1:6641", nil, away), OVNUnreachable)
	finds(t, judgeOVNOff(nil))
	finds(t, judgeOVNOff([]string{"a/b"}), OVNOff)
}

func TestBorrowed(t *testing.T) {
	dir := t.TempDir()
	finds(t, judgeBorrowed(filepath.Join(dir, "nowhere"), time.Second, time.Now()))
	if err := os.WriteFile(filepath.Join(dir, "0000:3b:02.4.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	finds(t, judgeBorrowed(dir, 20*time.Second, time.Now()))
	finds(t, judgeBorrowed(dir, 20*time.Second, time.Now().Add(time.Minute)), VFIOBorrowed)
}
