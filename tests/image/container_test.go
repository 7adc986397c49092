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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// container is a rig.Place: in it a program of the image is started by runc as a kubelet
// has it started of manifests/base. Capabilities and mounts are those of the DaemonSet,
// the root file system is read-only, the node's network is shared, nothing can gain a
// privilege, seccomp and what is masked are the runtime's usual ones.
type container struct {
	node         *rig.Netns
	capabilities []string
	// host is the folder of what is the node's: /opt of the node is opt in it.
	host   string
	mounts []any
}

// newContainer is the container of that name in the DaemonSet.
func newContainer(t *testing.T, node *rig.Netns, name string) *container {
	t.Helper()
	// A socket's path may have 107 bytes: t.TempDir would be too long.
	host, err := os.MkdirTemp("", "dm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(host) })
	c := &container{node: node, host: host}
	// The token, which the kubelet mounts by a link of the image.
	c.mount(t, "/token", "/var/run/secrets/kubernetes.io/serviceaccount", "ro", "rprivate")
	pod := daemonSet(t)
	hostPaths := map[string]string{}
	for _, v := range pod.Volumes {
		hostPaths[v.Name] = v.HostPath.Path
	}
	for _, in := range slices.Concat(pod.InitContainers, pod.Containers) {
		if in.Name != name {
			continue
		}
		for _, capability := range in.SecurityContext.Capabilities.Add {
			c.capabilities = append(c.capabilities, string(capability))
		}
		for _, m := range in.VolumeMounts {
			c.mount(t, hostPaths[m.Name], m.MountPath, options(m)...)
		}
		return c
	}
	t.Fatalf("manifests/base has no container %s", name)
	return nil
}

// daemonSet is the pod of manifests/base.
func daemonSet(t *testing.T) corev1.PodSpec {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "manifests/base/daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var ds appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(b, &ds); err != nil {
		t.Fatal(err)
	}
	return ds.Spec.Template.Spec
}

// options are those that the kubelet has a mount made with.
func options(m corev1.VolumeMount) []string {
	access, propagation := "rw", "rprivate"
	if m.ReadOnly {
		access = "ro"
	}
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer {
		propagation = "rslave"
	}
	return []string{access, propagation}
}

// mount adds a folder of the node. Of these the namespaces are the machine's.
func (c *container) mount(t *testing.T, source, destination string, options ...string) {
	t.Helper()
	if source != "/run/netns" {
		source = filepath.Join(c.host, source)
		if err := os.MkdirAll(source, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.mounts = append(c.mounts, object{"type": "bind", "source": source, "destination": destination, "options": append(options, "rbind")})
}

// engine prepares the image's engine with its default paths.
func (c *container) engine(args ...string) *rig.Engine {
	return rig.NewEngineAt(c, filepath.Join(c.host, "var/lib/dhcp-meta"), filepath.Join(c.host, "run/dhcp-meta/engine.sock"),
		append([]string{"--no-kubernetes"}, args...)...)
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
		"mounts": append(spec.Mounts, c.mounts...), "linux": spec.Linux,
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
