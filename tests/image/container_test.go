package image

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// container is a rig.Place: in it the image's engine is started by runc as a kubelet
// has it started of our DaemonSet. The root file system is read-only, the node's
// network is shared, nothing can gain a privilege, seccomp and what is masked are the
// runtime's usual ones, and of capabilities there are those named here.
type container struct {
	node         *rig.Netns
	capabilities []string
	// host is the folder of what is the node's: it has run, state and cni.
	host string
}

func newContainer(t *testing.T, node *rig.Netns, capabilities []string) *container {
	t.Helper()
	// A socket's path may have 107 bytes: t.TempDir would be too long.
	host, err := os.MkdirTemp("", "dm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(host) })
	for _, folder := range []string{"run", "state", "cni", "token"} {
		if err := os.Mkdir(filepath.Join(host, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return &container{node: node, capabilities: capabilities, host: host}
}

// engine prepares the image's engine with its default paths.
func (c *container) engine(args ...string) *rig.Engine {
	return rig.NewEngineAt(c, filepath.Join(c.host, "state"), filepath.Join(c.host, "run/engine.sock"),
		append([]string{"--no-kubernetes"}, args...)...)
}

// mounts are those of the DaemonSet. The token's place is by a link of the image.
func (c *container) mounts() []any {
	bind := func(source, destination string, options ...string) any {
		return object{"type": "bind", "source": source, "destination": destination, "options": append(options, "rbind")}
	}
	return []any{
		bind(filepath.Join(c.host, "run"), "/run/dhcp-meta", "rw", "rprivate"),
		bind(filepath.Join(c.host, "state"), "/var/lib/dhcp-meta", "rw", "rprivate"),
		bind(filepath.Join(c.host, "cni"), "/run/cni", "rw", "rprivate"),
		bind(filepath.Join(c.host, "token"), "/var/run/secrets/kubernetes.io/serviceaccount", "ro", "rprivate"),
		bind("/run/netns", "/run/netns", "ro", "rslave"),
	}
}

var lives atomic.Int64

// Start implements rig.Place: of cmd only the arguments count. runc's process number
// space is one of its own, so that all of the container ends when runc is killed.
func (c *container) Start(t testing.TB, name string, cmd *exec.Cmd) *rig.Process {
	t.Helper()
	id := fmt.Sprintf("dm-%d-%d-image", os.Getpid(), lives.Add(1))
	bundle := filepath.Join(c.host, id)
	c.bundle(t, bundle, id, cmd.Args[1:])
	t.Cleanup(func() { removeCgroup(t, id) })
	return c.node.Start(t, name, exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=slave", "--",
		"runc", "--root", filepath.Join(c.host, "runc"), "run", "--bundle", bundle, id))
}

// bundle writes what runc runs: its own usual container but for what is said here.
func (c *container) bundle(t testing.TB, folder, id string, args []string) {
	t.Helper()
	root, err := unpacked()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("runc", "spec", "--bundle", folder).CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v\n%s", err, out)
	}
	path := filepath.Join(folder, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Process, Root, Linux object
		Mounts               []any
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		t.Fatal(err)
	}
	var set []string
	for _, name := range c.capabilities {
		set = append(set, "CAP_"+name)
	}
	spec.Process["terminal"] = false
	spec.Process["args"] = append([]string{"/usr/bin/dhcp-engine"}, args...)
	spec.Process["env"] = []string{"PATH=/usr/bin"}
	spec.Process["capabilities"] = object{"bounding": set, "effective": set, "permitted": set}
	spec.Process["noNewPrivileges"] = true
	delete(spec.Process, "rlimits")
	spec.Linux["namespaces"] = slices.DeleteFunc(spec.Linux["namespaces"].([]any), func(ns any) bool {
		return ns.(object)["type"] == "network"
	})
	spec.Linux["seccomp"] = seccomp(t, set)
	spec.Linux["cgroupsPath"] = "/" + id
	b, err = json.Marshal(object{
		"ociVersion": "1.0.2", "process": spec.Process, "root": object{"path": root, "readonly": true},
		"mounts": append(spec.Mounts, c.mounts()...), "linux": spec.Linux,
	})
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// removeCgroup removes what runc has made for a container. What was killed leaves its
// cgroup when it is reaped, which no event tells.
func removeCgroup(t testing.TB, id string) {
	t.Helper()
	folders, err := filepath.Glob("/sys/fs/cgroup/*/" + id)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(rig.Patience)
	for _, folder := range append(folders, "/sys/fs/cgroup/"+id) {
		for err := os.Remove(folder); err != nil && !os.IsNotExist(err); err = os.Remove(folder) {
			if time.Now().After(deadline) {
				t.Errorf("remove a container's cgroup: %v", err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// rules are of a seccomp profile as container engines write it: which calls are
// allowed follows from architecture and capabilities.
type rules struct {
	DefaultAction   string `json:"defaultAction"`
	DefaultErrnoRet *uint  `json:"defaultErrnoRet"`
	Syscalls        []struct {
		Names    []string `json:"names"`
		Action   string   `json:"action"`
		ErrnoRet *uint    `json:"errnoRet"`
		Args     []any    `json:"args"`
		Includes of       `json:"includes"`
		Excludes of       `json:"excludes"`
	} `json:"syscalls"`
}

type of struct {
	Caps   []string `json:"caps"`
	Arches []string `json:"arches"`
}

// seccomp is the profile of podman, buildah and CRI-O for a container with the
// capabilities.
func seccomp(t testing.TB, capabilities []string) object {
	t.Helper()
	b, err := os.ReadFile("/usr/share/containers/seccomp.json")
	if err != nil {
		t.Fatal(err)
	}
	var profile rules
	if err := json.Unmarshal(b, &profile); err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool { return slices.Contains(capabilities, name) }
	var calls []object
	for _, s := range profile.Syscalls {
		in, out := s.Includes, s.Excludes
		if slices.ContainsFunc(in.Caps, func(name string) bool { return !has(name) }) || slices.ContainsFunc(out.Caps, has) ||
			len(in.Arches) > 0 && !slices.Contains(in.Arches, runtime.GOARCH) || slices.Contains(out.Arches, runtime.GOARCH) {
			continue
		}
		call := object{"names": s.Names, "action": s.Action, "args": s.Args}
		if s.ErrnoRet != nil {
			call["errnoRet"] = *s.ErrnoRet
		}
		calls = append(calls, call)
	}
	p := object{"defaultAction": profile.DefaultAction, "syscalls": calls}
	if profile.DefaultErrnoRet != nil {
		p["defaultErrnoRet"] = *profile.DefaultErrnoRet
	}
	return p
}
