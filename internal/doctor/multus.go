package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

const (
	// defaultBinDir is what Multus searches unless told otherwise.
	defaultBinDir = "/opt/cni/bin"
	// configKey is the key of a ConfigMap that holds the thick daemon's configuration.
	configKey = "daemon-config.json"
)

// Multus is what the node's Multus is set up to do, as its pod and its ConfigMap say.
type Multus struct {
	Pod     string // namespace/name
	Image   string
	Running bool
	// Thick is whether a daemon does the work. A thin one does it in the process that
	// the runtime starts, with the runtime's CNI_PATH.
	Thick bool
	// CNIPath is that of the daemon's environment; StateDir and Socket are what it
	// hands on of our own variables.
	CNIPath          string
	StateDir, Socket string
	// Mounts are the node's folders in the pod, by where they are there.
	Mounts map[string]string
	// ConfigMap is where the configuration is from; Unread why it could not be read,
	// Wrong why it cannot be understood.
	ConfigMap     string
	Unread, Wrong error
	Config        multusConfig
}

// multusConfig are the keys of the daemon's configuration that matter here.
type multusConfig struct {
	CNIVersion     string `json:"cniVersion"`
	BinDir         string `json:"binDir"`
	ClusterNetwork string `json:"clusterNetwork"`
	Readiness      string `json:"readinessindicatorfile"`
}

// known tells whether it is known where this Multus searches.
func (m Multus) known() bool { return m.Thick && m.Unread == nil && m.Wrong == nil }

// Search is where Multus looks for plugins, in its order (tried, v4.2.3: binDir, then
// the CNI_PATH of the daemon's own environment; the runtime's never gets there).
func (m Multus) Search() []string {
	return append([]string{cmp.Or(m.Config.BinDir, defaultBinDir)}, aside.SearchPath(m.CNIPath)...)
}

// Version is the tag of the image; empty where it has none.
func (m Multus) Version() string {
	image, _, _ := strings.Cut(m.Image, "@")
	_, tag, _ := strings.Cut(path.Base(image), ":")
	return tag
}

// findMultus finds the pod that is Multus on this node: by its image, since labels
// and names differ between those who ship it.
func findMultus(pods []corev1.Pod) (m Multus, volumes []corev1.Volume, ok bool) {
	for _, pod := range pods {
		for _, c := range pod.Spec.Containers {
			// Not what else comes with it: admission controller, dynamic networks.
			name := path.Base(c.Image)
			if !strings.Contains(name, "multus") || strings.Contains(name, "admission") || strings.Contains(name, "dynamic") {
				continue
			}
			m = multusOf(pod, c)
			return m, pod.Spec.Volumes, true
		}
	}
	return Multus{}, nil, false
}

func multusOf(pod corev1.Pod, c corev1.Container) Multus {
	started := strings.Join(append(slices.Clone(c.Command), c.Args...), " ")
	m := Multus{
		Pod: pod.Namespace + "/" + pod.Name, Image: c.Image, Running: pod.Status.Phase == corev1.PodRunning,
		Thick:  strings.Contains(started, "multus-daemon") || started == "" && strings.Contains(path.Base(c.Image), "thick"),
		Mounts: map[string]string{},
	}
	for _, v := range c.Env {
		switch v.Name {
		case "CNI_PATH":
			m.CNIPath = v.Value
		case aside.StateDirVariable:
			m.StateDir = v.Value
		case aside.SocketVariable:
			m.Socket = v.Value
		}
	}
	for _, at := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == at.Name })
		if i >= 0 && pod.Spec.Volumes[i].HostPath != nil {
			m.Mounts[path.Clean(at.MountPath)] = path.Clean(pod.Spec.Volumes[i].HostPath.Path)
		}
	}
	return m
}

// readConfig reads the ConfigMap that the pod mounts.
func (m *Multus) readConfig(ctx context.Context, c *cluster, volumes []corev1.Volume) {
	namespace, _, _ := strings.Cut(m.Pod, "/")
	m.Unread = fmt.Errorf("the pod mounts no ConfigMap with a key %s", configKey)
	for _, v := range volumes {
		if v.ConfigMap == nil {
			continue
		}
		got, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			m.Unread = err
			continue
		}
		text, ok := got.Data[configKey]
		if !ok {
			continue
		}
		m.ConfigMap, m.Unread = namespace+"/"+got.Name, nil
		m.Wrong = json.Unmarshal([]byte(text), &m.Config)
		return
	}
}

func (e *examination) checkMultus(ctx context.Context) ([]Finding, string) {
	if e.cluster == nil || e.cluster.podsErr != nil {
		return nil, ""
	}
	m, volumes, ok := findMultus(e.cluster.pods)
	if !ok {
		return []Finding{{MultusMissing, Warning, "no Multus is on this node, without which pods have no second interface",
			"no pod of this node has an image named multus", "install Multus; where something else calls dhcp-meta, all is well"}}, ""
	}
	if m.Thick {
		m.readConfig(ctx, e.cluster, volumes)
	}
	e.multus = &m
	kind := "thin"
	if m.Thick {
		kind = "thick"
	}
	well := fmt.Sprintf("%s, %s, image %s", m.Pod, kind, m.Image)
	if m.known() {
		well += ", searches " + strings.Join(m.Search(), ", then ")
	}
	return append(m.judge(e.cfg.BinDir), e.judgePlaces(m)...), well
}

// judge holds Multus against what dhcp-meta needs of it; binDir is the node's folder of
// plugins.
func (m Multus) judge(binDir string) (found []Finding) {
	if !m.Running {
		found = append(found, Finding{MultusNotRunning, Error, "Multus does not run on this node", seen("pod %s is not in phase Running", m.Pod),
			"kubectl describe pod, and its log"})
	}
	if !m.Thick {
		return append(found, Finding{MultusThin, Note, "Multus is thin: it cannot be seen from here where it searches",
			seen("pod %s starts no multus-daemon", m.Pod),
			"a thin Multus searches binDir of its 00-multus.conf, then the runtime's own CNI folders; see docs/install.md"})
	}
	if m.Unread != nil {
		found = append(found, Finding{MultusUnread, Note, "the configuration of Multus cannot be read, so it is not known where it searches", m.Unread.Error(),
			"give the account of this call the right get on that ConfigMap, or compare binDir and CNI_PATH yourself with docs/install.md"})
	}
	if m.Wrong != nil {
		return append(found, Finding{MultusConfigWrong, Error, "Multus's configuration cannot be read by Multus either",
			seen("%s of ConfigMap %s: %v", configKey, m.ConfigMap, m.Wrong), "mend that JSON, and restart Multus"})
	}
	return append(found, m.judgeConfig(binDir)...)
}

func (m Multus) judgeConfig(binDir string) (found []Finding) {
	from := seen("in %s of ConfigMap %s", configKey, m.ConfigMap)
	if major, minor := version(m.Config.CNIVersion); major > 1 || major == 1 && minor >= 1 {
		found = append(found, Finding{MultusCNIVersion, Error, "with this cniVersion Multus makes the node NotReady: it answers STATUS and GC by an error",
			seen("cniVersion is %s %s", m.Config.CNIVersion, from), "set \"cniVersion\": \"1.0.0\" there and restart Multus; its networks may have 1.1.0"})
	}
	// One of them tells of the default network.
	if file := cmp.Or(m.Config.ClusterNetwork, m.Config.Readiness); strings.HasSuffix(file, ".conflist") {
		found = append(found, Finding{MultusConflist, Warning, "Multus forgets the default network's configuration at DEL, so that its addresses leak (v4.2.3)",
			seen("the default network is %s %s, a list", file, from), "give the default network a single-plugin .conf, or name it as a NetworkAttachmentDefinition"})
	}
	if strings.Contains(m.Config.BinDir, ":") {
		found = append(found, Finding{MultusBinDirList, Error, "Multus finds no plugin at all: binDir is one folder, and is not split",
			seen("binDir is %q %s", m.Config.BinDir, from), "put one folder there, and the others into CNI_PATH of the daemon's environment"})
		return found
	}
	if m.Config.BinDir != "" && path.Clean(m.Config.BinDir) != path.Clean(binDir) && m.CNIPath == "" {
		found = append(found, Finding{MultusCNIPath, Error, "Multus finds the plugins in its binDir only, and these find none behind themselves",
			seen("binDir is %s %s, and the container of pod %s has no CNI_PATH", m.Config.BinDir, from, m.Pod),
			"set CNI_PATH=" + binDir + " in the environment of Multus' daemon"})
	}
	for _, dir := range m.Search() {
		if on, ok := m.hostFolder(dir); len(m.Mounts) > 0 && (!ok || on != path.Clean(dir)) {
			found = append(found, Finding{MultusMount, Error, "Multus cannot see " + dir + ", where it is to search",
				seen("pod %s mounts %s", m.Pod, strings.Join(slices.Sorted(maps.Keys(m.Mounts)), ", ")),
				"mount the node's " + dir + " at the same path into Multus' pod: it looks there, and executes on the node"})
		}
	}
	return found
}

// hostFolder is what a folder of the pod is on the node.
func (m Multus) hostFolder(dir string) (string, bool) {
	dir = path.Clean(dir)
	best := ""
	for at := range m.Mounts {
		if (at == "/" || dir == at || strings.HasPrefix(dir, at+"/")) && len(at) > len(best) {
			best = at
		}
	}
	if best == "" {
		return "", false
	}
	return path.Join(m.Mounts[best], strings.TrimPrefix(dir, best)), true
}

// judgePlaces looks whether plugins are told where the engine's own places are.
func (e *examination) judgePlaces(m Multus) (found []Finding) {
	if !m.Thick { // it has the runtime's environment
		return nil
	}
	for _, p := range []struct{ name, has, want, usual string }{
		{aside.SocketVariable, m.Socket, e.cfg.Socket, network.DefaultSocket},
		{aside.StateDirVariable, m.StateDir, e.cfg.StateDir, network.DefaultStateDir},
	} {
		if cmp.Or(p.has, p.usual) != p.want {
			found = append(found, Finding{MultusPlaces, Error, "plugins look for the engine where it is not",
				seen("%s is %q for the container of pod %s, and %q for the engine", p.name, cmp.Or(p.has, p.usual), m.Pod, p.want),
				"set the same " + p.name + " in the environment of Multus' daemon, or leave it out in both"})
		}
	}
	return found
}

// version reads a version of CNI; zeros where it is none.
func version(s string) (major, minor int) {
	_, _ = fmt.Sscanf(s, "%d.%d", &major, &minor)
	return major, minor
}
