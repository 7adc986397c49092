package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

func program(name string, args ...string) *exec.Cmd { return exec.Command(name, args...) }

func nodeMistakes() []mistake {
	return []mistake{
		{name: "an old kernel", want: []doctor.ID{doctor.KernelOld}, visit: by("setarch", "--uname-2.6")},
		{name: "a capability dropped", want: []doctor.ID{doctor.CapabilityMissing}, visit: by("setpriv", "--bounding-set=-net_raw")},
		{name: "a time namespace", want: []doctor.ID{doctor.BootTimeOffset}, visit: by("unshare", "--time", "--boottime=3600", "--fork")},
		{name: "secondaries are not promoted", note: doctor.PromoteOff, harm: func(t *testing.T, c *clinic) func() {
			set := func(value string) {
				err := c.node.Net.Do(func() error {
					return os.WriteFile("/proc/sys/net/ipv4/conf/all/promote_secondaries", []byte(value), 0)
				})
				if err != nil {
					t.Error(err)
				}
			}
			set("0")
			return func() { set("1") }
		}},
		{name: "state folder nowhere", want: []doctor.ID{doctor.StateMissing, doctor.MarksStale, doctor.MultusPlaces},
			visit: env("DHCP_ENGINE_STATE_DIR", "/var/lib/nowhere")},
		{name: "another state folder", note: doctor.StateElsewhere, want: []doctor.ID{doctor.MarksStale, doctor.MultusPlaces},
			visit: env("DHCP_ENGINE_STATE_DIR", state+"/attachments")},
		{name: "state folder read-only", want: []doctor.ID{doctor.StateReadOnly, doctor.EngineNotReady}, harm: func(t *testing.T, c *clinic) func() {
			c.node.Run(t, "mount", "--bind", state, state)
			c.node.Run(t, "mount", "-o", "remount,bind,ro", state)
			return func() { c.node.Run(t, "umount", state) }
		}},
		{name: "state folder small and in memory", want: []doctor.ID{doctor.StateFull, doctor.StateMemory}, harm: func(t *testing.T, c *clinic) func() {
			marks := c.node.Run(t, "cat", state+"/networks.json")
			c.node.Run(t, "mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "small", state)
			c.node.Run(t, "mkdir", "-m", "700", state+"/attachments")
			c.node.Write(t, state+"/networks.json", []byte(marks))
			return func() { c.node.Run(t, "umount", state) }
		}},
		{name: "state folder open to all", want: []doctor.ID{doctor.StateOpen}, harm: chmod(state, 0o777, 0o700)},
		{name: "a record cut short", want: []doctor.ID{doctor.RecordUnreadable}, harm: file(state+"/attachments/"+rig.RandomHex(32)+":net1.json", `{"version":`)},
		{name: "a record put aside", note: doctor.RecordCorrupt, harm: file(state+"/attachments/"+rig.RandomHex(32)+":net1.json.corrupt", `{`)},
		// While it runs the engine looks after its journal itself.
		{name: "killed with a device borrowed", want: []doctor.ID{doctor.SocketStale, doctor.VFIOBorrowed}, harm: func(t *testing.T, c *clinic) func() {
			const entry = state + "/borrowed/0000:3b:02.4.json"
			c.engine.Kill(t)
			mend := file(entry, "{}")(t, c)
			c.node.Run(t, "touch", "-d", "1 hour ago", entry)
			return func() {
				mend()
				c.engine.Start(t)
			}
		}},
		{name: "killed before marks were written", want: []doctor.ID{doctor.SocketStale, doctor.MarksStale}, harm: func(t *testing.T, c *clinic) func() {
			c.engine.Kill(t)
			mend := replaced(t, c, state+"/networks.json", []byte(`{"marked":["prod/gone"]}`), 0o600)
			return func() {
				mend()
				c.engine.Start(t)
			}
		}},
		// For doctor alone: an engine that loses sight of a namespace ends its attachments.
		{name: "no namespaces mounted", want: []doctor.ID{doctor.NetnsPrivate, doctor.NetnsUnseen, doctor.NetnsFew},
			visit: by("unshare", "--mount", "sh", "-c", `mount -t tmpfs none /run/netns && exec "$@"`, "sh")},
		{name: "namespaces looked for elsewhere", want: []doctor.ID{doctor.NetnsRootMissing}, visit: env("DHCP_ENGINE_NETNS_ROOT", "/run/nowhere")},
	}
}

// file makes a file on the node, and removes it.
func file(path, content string) func(*testing.T, *clinic) func() {
	return func(t *testing.T, c *clinic) func() {
		c.node.Write(t, path, []byte(content))
		return func() { c.node.Run(t, "rm", path) }
	}
}

// replaced puts something else in the place of a file on the node; nil: nothing.
func replaced(t *testing.T, c *clinic, path string, content []byte, mode os.FileMode) (mend func()) {
	t.Helper()
	own := "/run/aside-" + filepath.Base(path) // elsewhere: who looks into the folder sees what is left there
	c.node.Run(t, "mv", path, own)
	if content != nil {
		c.node.Write(t, path, content)
		if err := os.Chmod(c.node.Path(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	return func() { c.node.Run(t, "mv", own, path) }
}
