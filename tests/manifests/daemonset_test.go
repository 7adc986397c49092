package manifests

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// daemonSet is the DaemonSet of a way.
func (w way) daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	for _, o := range objects(t, w.kustomize(t)) {
		if o.GetKind() == "DaemonSet" {
			return decode[appsv1.DaemonSet](t, o.Object)
		}
	}
	t.Fatalf("%s has no DaemonSet", w.name)
	return nil
}

// containers are all of a pod, init containers too.
func containers(ds *appsv1.DaemonSet) []corev1.Container {
	pod := ds.Spec.Template.Spec
	return slices.Concat(pod.InitContainers, pod.Containers)
}

func (w way) vfio() bool { return slices.Contains(w.components, "vfio") }

// The engine is on every node, whatever its taints, also before the network is there,
// and nobody is evicted later than it.
func TestK81OnEveryNode(t *testing.T) {
	for _, w := range slices.Concat(ways, uninstallers) {
		pod := w.daemonSet(t).Spec.Template.Spec
		if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); diff != "" {
			t.Errorf("%s: tolerations (-want +got):\n%s", w.name, diff)
		}
		if diff := cmp.Diff(map[string]string{"kubernetes.io/os": "linux"}, pod.NodeSelector); diff != "" || pod.Affinity != nil {
			t.Errorf("%s: nodes (-want +got):\n%s", w.name, diff)
		}
		if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" {
			t.Errorf("%s: host network %v, priority class %q", w.name, pod.HostNetwork, pod.PriorityClassName)
		}
	}
}

// An update never has two engines on a node, and gives an engine the time that it takes
// to end DELs.
func TestUpdateOfTheEngine(t *testing.T) {
	for _, w := range ways {
		ds := w.daemonSet(t)
		u := ds.Spec.UpdateStrategy
		if u.Type != appsv1.RollingUpdateDaemonSetStrategyType || u.RollingUpdate.MaxSurge.IntValue() != 0 || u.RollingUpdate.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%s: %+v", w.name, u)
		}
		// docs/configuration.md: "for at most 20 s".
		if grace := *ds.Spec.Template.Spec.TerminationGracePeriodSeconds; grace <= 20 {
			t.Errorf("%s: %d s to end", w.name, grace)
		}
	}
}

// Each container has what docs/security.md gives it, and no more.
func TestU20PrivilegesOfThePods(t *testing.T) {
	installer := []corev1.Capability{"DAC_OVERRIDE"}
	want := map[string][]corev1.Capability{
		"engine":  {"NET_ADMIN", "NET_RAW", "SYS_ADMIN"},
		"install": installer, "keep-installed": installer, "uninstall": installer, "done": installer,
	}
	for _, w := range slices.Concat(ways, uninstallers) {
		ds := w.daemonSet(t)
		pod := ds.Spec.Template.Spec
		if pod.HostPID != w.vfio() || pod.HostIPC {
			t.Errorf("%s: host PIDs %v, host IPC %v", w.name, pod.HostPID, pod.HostIPC)
		}
		if p := pod.SecurityContext.SeccompProfile; p == nil || p.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: seccomp profile %+v", w.name, p)
		}
		for _, c := range containers(ds) {
			s := c.SecurityContext
			if !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: %s may write into its root", w.name, c.Name)
			}
			if w.vfio() && c.Name == "engine" {
				if s.Privileged == nil || !*s.Privileged {
					t.Errorf("%s: %+v", w.name, s)
				}
				continue
			}
			if s.Privileged != nil || *s.AllowPrivilegeEscalation {
				t.Errorf("%s: %s is privileged, or may become so", w.name, c.Name)
			}
			got := slices.Sorted(slices.Values(s.Capabilities.Add))
			if diff := cmp.Diff(want[c.Name], got); diff != "" || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: capabilities of %s (-want +got), dropped %v:\n%s", w.name, c.Name, s.Capabilities.Drop, diff)
			}
		}
	}
}

// The table of docs/install.md has the folders of the node that pods see, which of them
// can be written, and no others.
func TestK82HostPathsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), "| path on the node | in | how | for |\n|---|---|---|---|\n")
	if !found {
		t.Fatal("docs/install.md has no table of paths")
	}
	documented := map[string]map[string]bool{} // by what the way is called there: path, may write
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if len(cells) != 4 {
			break
		}
		for in := range strings.SplitSeq(strings.TrimSpace(cells[1]), ", ") {
			for _, m := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(cells[0], -1) {
				if documented[in] == nil {
					documented[in] = map[string]bool{}
				}
				documented[in][m[1]] = strings.Contains(cells[2], "writes")
			}
		}
	}
	const other = "/var/lib/cni/bin" // OpenShift's
	called := map[string][]string{
		"plain": {"every way"}, "drop-in": {"every way", "drop-in"},
		"ovn-kubernetes": {"every way", "search path"}, "swap": {"every way", "swap"}, "openshift": {"every way", "swap"},
		"vfio": {"every way", "search path", "vfio"}, "plain with vfio": {"every way", "vfio"}, "openshift with vfio": {"every way", "swap", "vfio"},
		"uninstall": {"uninstaller"}, "uninstall on openshift": {"uninstaller"},
	}
	for _, w := range slices.Concat(ways, uninstallers) {
		want := map[string]bool{}
		for _, in := range called[w.name] {
			if documented[in] == nil {
				t.Fatalf("no path is documented for %q", in)
			}
			maps.Copy(want, documented[in])
		}
		bin := "/opt/cni/bin"
		if strings.Contains(w.name, "openshift") {
			bin = other
		}
		delete(want, "/opt/cni/bin")
		delete(want, other)
		want[bin] = true
		if diff := cmp.Diff(want, hostPaths(t, w)); diff != "" {
			t.Errorf("%s: paths, and whether they are written (-documented +asked for):\n%s", w.name, diff)
		}
	}
}

// hostPaths are the node's folders in a way's pods, and whether one may write there.
func hostPaths(t *testing.T, w way) map[string]bool {
	t.Helper()
	ds := w.daemonSet(t)
	paths, used := map[string]string{}, map[string]bool{}
	for _, v := range ds.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	for _, c := range containers(ds) {
		for _, m := range c.VolumeMounts {
			path := paths[m.Name]
			used[path] = used[path] || !m.ReadOnly
			if m.MountPath != path && !strings.HasPrefix(m.MountPath, "/host/") {
				t.Errorf("%s: %s of the node is %s in %s", w.name, path, m.MountPath, c.Name)
			}
		}
	}
	return used
}

// What is mounted on the node later must be seen, and what the engine mounts for vfio
// must outlive it.
func TestMountPropagation(t *testing.T) {
	for _, w := range ways {
		want := map[string]corev1.MountPropagationMode{"/run/netns": corev1.MountPropagationHostToContainer}
		if w.vfio() {
			want["/run/dhcp-meta"] = corev1.MountPropagationBidirectional
		}
		got := map[string]corev1.MountPropagationMode{}
		for _, c := range containers(w.daemonSet(t)) {
			for _, m := range c.VolumeMounts {
				if m.MountPropagation != nil {
					got[m.MountPath] = *m.MountPropagation
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", w.name, diff)
		}
	}
}

// Variables of the engine are those that it has.
func TestEngineVariables(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ways {
		for _, c := range containers(w.daemonSet(t)) {
			for _, e := range c.Env {
				// That one is of doctor, and of install.
				if e.Name != "DHCP_ENGINE_BIN_DIR" && !strings.Contains(string(doc), "`"+e.Name+"`") {
					t.Errorf("%s: %s has %s, which docs/configuration.md does not know", w.name, c.Name, e.Name)
				}
			}
		}
	}
}

// The real program takes the arguments that are shipped, on a folder of plugins, and the
// uninstaller leaves the folder as it was.
func TestShippedArguments(t *testing.T) {
	rig.Need(t)
	plugin, err := os.ReadFile(rig.Program("dhcp-engine")) // a program, as a plugin is
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			bin := filepath.Join(t.TempDir(), "bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"ovn-k8s-cni-overlay", "dhcp", "macvlan"} {
				if err := os.WriteFile(filepath.Join(bin, name), plugin, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			before := files(t, bin)
			execute(t, bin, containers(w.daemonSet(t))[0].Args)
			installed := files(t, bin)
			if _, ok := installed["dhcp-meta"]; !ok || maps.Equal(before, installed) {
				t.Errorf("nothing was installed: %v", slices.Sorted(maps.Keys(installed)))
			}
			execute(t, bin, containers(uninstallers[i%2].daemonSet(t))[0].Args)
			if diff := cmp.Diff(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(files(t, bin)))); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
			if !maps.Equal(before, files(t, bin)) {
				t.Error("a plugin is not what it was")
			}
		})
	}
}

// execute runs dhcp-engine on a folder in the place of each of the node's.
func execute(t *testing.T, bin string, args []string) {
	t.Helper()
	args = slices.Clone(args)
	for i, a := range args {
		name, _, _ := strings.Cut(a, "=")
		switch name {
		case "--bin-dir":
			args[i] = name + "=" + bin
		case "--state-dir", "--run-dir":
			args[i] = name + "=" + filepath.Join(filepath.Dir(bin), name)
		}
	}
	if out, err := exec.Command(rig.Program("dhcp-engine"), args...).CombinedOutput(); err != nil {
		t.Fatalf("dhcp-engine %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// files are those below a folder, with their content.
func files(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, folder+"/")] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
