package doctor

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// thick is the pod of Multus's own DaemonSet, as components/multus changes it.
func thick() Multus {
	return Multus{
		Pod: "kube-system/kube-multus-ds-x", Image: "registry.example.com/net/multus-cni:v4.2.3-thick", Running: true, Thick: true,
		CNIPath: "/opt/cni/bin", Mounts: map[string]string{"/opt/cni/bin": "/opt/cni/bin", "/hostroot": "/"},
		ConfigMap: "kube-system/multus-daemon-config",
		Config:    multusConfig{CNIVersion: "0.3.1", BinDir: "/opt/cni/bin/dhcp-meta-wrappers"},
	}
}

func TestMultus(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Multus)
		want   []ID
		search []string
	}{
		"well":   {func(*Multus) {}, nil, []string{"/opt/cni/bin/dhcp-meta-wrappers", "/opt/cni/bin"}},
		"unset":  {func(m *Multus) { m.Config.BinDir, m.CNIPath = "", "" }, nil, []string{"/opt/cni/bin"}},
		"a path": {func(m *Multus) { m.CNIPath = "/opt/cni/bin::/hostroot/b" }, []ID{MultusMount}, []string{"/opt/cni/bin/dhcp-meta-wrappers", "/opt/cni/bin", "/hostroot/b"}},
		"1.1.0":  {func(m *Multus) { m.Config.CNIVersion = "1.1.0" }, []ID{MultusCNIVersion}, nil},
		"1.0.0":  {func(m *Multus) { m.Config.CNIVersion = "1.0.0" }, nil, nil},
		"a list of plugins": {func(m *Multus) { m.Config.Readiness = "/host/run/multus/cni/net.d/10-x.conflist" },
			[]ID{MultusConflist}, nil},
		"two folders":   {func(m *Multus) { m.Config.BinDir = "/a:/b" }, []ID{MultusBinDirList}, nil},
		"no CNI_PATH":   {func(m *Multus) { m.CNIPath = "" }, []ID{MultusCNIPath}, []string{"/opt/cni/bin/dhcp-meta-wrappers"}},
		"another place": {func(m *Multus) { m.Mounts = map[string]string{"/opt/cni/bin": "/usr/libexec/cni"} }, []ID{MultusMount, MultusMount}, nil},
		"thin":          {func(m *Multus) { m.Thick = false }, []ID{MultusThin}, nil},
		"pending":       {func(m *Multus) { m.Running = false }, []ID{MultusNotRunning}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := thick()
			tt.change(&m)
			finds(t, m.judge("/opt/cni/bin"), tt.want...)
			if got := m.Search(); tt.search != nil && !slices.Equal(got, tt.search) {
				t.Errorf("searches %v, want %v", got, tt.search)
			}
		})
	}
}

// OpenShift has its plugins elsewhere, in Multus' binDir, and no CNI_PATH.
func TestMultusOfOpenShift(t *testing.T) {
	m := thick()
	m.Config.BinDir, m.CNIPath, m.Mounts = "/var/lib/cni/bin", "", map[string]string{"/var/lib/cni/bin": "/var/lib/cni/bin"}
	finds(t, m.judge("/var/lib/cni/bin"))
}

// Multus is known by its image, whoever ships it, and not taken for what comes with it.
func TestFindMultus(t *testing.T) {
	for image, want := range map[string]struct {
		command []string
		found   bool
		thick   bool
		version string
	}{
		"registry.example.com/net/multus-cni:v4.2.3-thick":                          {[]string{"/usr/src/multus-cni/bin/multus-daemon"}, true, true, "v4.2.3-thick"},
		"registry.example.com/net/multus-cni:v4.2.3":                                {[]string{"/thin_entrypoint"}, true, false, "v4.2.3"},
		"rancher/hardened-multus-thick:v4.2.2-build20250627":                        {nil, true, true, "v4.2.2-build20250627"},
		"registry.example.com/openshift/ose-multus-cni-rhel9@sha256:0123":           {[]string{"/bin/bash", "-ec", "exec /usr/src/multus-cni/bin/multus-daemon"}, true, true, ""},
		"registry:5000/multus-cni:v4":                                               {[]string{"/entrypoint"}, true, false, "v4"},
		"registry.example.com/openshift/multus-admission-controller:v4":             {nil, false, false, ""},
		"registry.example.com/net/multus-dynamic-networks-controller:latest":        {nil, false, false, ""},
		"registry.k8s.io/pause:3.10":                                                {nil, false, false, ""},
		"registry.example.com/net/multus-cni:v4.3.0-thick@sha256:0123456789abcdef0": {[]string{"multus-daemon"}, true, true, "v4.3.0-thick"},
	} {
		t.Run(image, func(t *testing.T) {
			pod := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image, Command: want.command}}}}
			m, _, ok := findMultus([]corev1.Pod{{}, pod})
			if ok != want.found || m.Thick != want.thick || ok && m.Version() != want.version {
				t.Errorf("found %v: %+v (version %q), want %+v", ok, m, m.Version(), want)
			}
		})
	}
}

// A pod's folders are followed to the node's.
func TestMultusOfItsPod(t *testing.T) {
	host := corev1.Volume{Name: "bin", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/opt/cni/"}}}
	c := corev1.Container{
		Image: "multus-cni", Env: []corev1.EnvVar{{Name: "CNI_PATH", Value: "/opt/cni/bin"}, {Name: "DHCP_ENGINE_SOCKET", Value: "/s"}},
		VolumeMounts: []corev1.VolumeMount{{Name: "bin", MountPath: "/host/cni/"}, {Name: "other", MountPath: "/x"}},
	}
	m := multusOf(corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{host}, Containers: []corev1.Container{c}}}, c)
	if on, ok := m.hostFolder("/host/cni/bin"); !ok || on != "/opt/cni/bin" || m.CNIPath != "/opt/cni/bin" || m.Socket != "/s" {
		t.Errorf("%s, %v of %+v", on, ok, m)
	}
	if _, ok := m.hostFolder("/x/y"); ok {
		t.Error("/x is no folder of the node")
	}
}
