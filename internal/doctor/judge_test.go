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

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
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

// The daemon's socket may be where the engine's container cannot see it.
func TestHiddenDHCPSocket(t *testing.T) {
	const socket = "/run/cni/dhcp.sock"
	var e examination
	finds(t, e.judgeHiddenSocket(socket, nil, nil))
	finds(t, e.judgeHiddenSocket(socket, []string{"/run/other.sock"}, []string{"a/b"}), DHCPSocketMissing)
	finds(t, e.judgeHiddenSocket(socket, []string{"/run/other.sock", "/host/run/cni/dhcp.sock"}, []string{"a/b"}))
}

// Who asks the daemon of the dhcp plugin is served by a drop-in, or rewritten. A mark
// changes nothing there, and a variable alone ends an engine that is a pod.
func TestNobodyServesTheDHCPPlugin(t *testing.T) {
	const asks = head + `"type":"macvlan","ipam":{"type":"dhcp"}`
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		pod    bool
		says   []string // empty: nothing is found
		no     string
	}{
		"a pod":          {asks + `}`, nil, true, []string{"overlays/drop-in", "mode=drop-in", `"type": "dhcp-meta"`, "delegate"}, "DHCP_ENGINE_DHCP_SOCKET"},
		"no pod":         {asks + `}`, nil, false, []string{"DHCP_ENGINE_DHCP_SOCKET=/run/cni/dhcp.sock", `"type": "dhcp-meta"`}, "overlays"},
		"marked":         {asks + `}`, marked, true, []string{"overlays/drop-in"}, "mark"},
		"marked, listed": {head + `"plugins":[{"type":"macvlan","ipam":{"type":"dhcp"}}]}`, marked, true, []string{"overlays/drop-in"}, "mark"},
		"wrapped":        {ours + `"delegate":{"type":"macvlan","ipam":{"type":"dhcp"}}}`, nil, true, nil, ""},
		"interposed":     {asks + `,"dhcp":{}}`, nil, true, nil, ""}, // where dhcp-meta must be found is told of
	} {
		t.Run(name, func(t *testing.T) {
			d, e := examined(nad("n", tt.config, tt.marks))
			e.cfg.InPod = tt.pod
			found := e.judgeHiddenSocket("/run/cni/dhcp.sock", nil, e.asking())
			if len(tt.says) == 0 {
				finds(t, found)
				return
			}
			finds(t, found, DHCPSocketMissing)
			finds(t, e.judgeNamed(d.name), DiscoverUnmarked)
			for _, f := range append(found, e.judgeNamed(d.name)...) {
				if !contains(f.Do, tt.says...) || strings.Contains(f.Do, tt.no) {
					t.Errorf("want it to say %q and not %q: %+v", tt.says, tt.no, f)
				}
			}
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

func TestDHCPSocket(t *testing.T) {
	refused := errors.New("connection refused")
	for name, tt := range map[string]struct {
		ours   bool
		err    error
		engine bool
		asking []string
		want   map[ID]Level
	}{
		"ours":                   {true, nil, true, nil, map[ID]Level{}},
		"ours, and nobody":       {true, refused, false, nil, map[ID]Level{DHCPSocketMissing: Error}},
		"ours, and another":      {true, nil, false, nil, map[ID]Level{DHCPSocketForeign: Error}},
		"another's":              {false, nil, false, []string{"a/b"}, map[ID]Level{DHCPDaemon: Note}},
		"nobody, nobody asks":    {false, refused, false, nil, map[ID]Level{}},
		"nobody, and one is due": {false, refused, false, []string{"a/b"}, map[ID]Level{DHCPSocketMissing: Warning}},
	} {
		t.Run(name, func(t *testing.T) {
			var e examination
			found := e.judgeDHCPSocket("/s", tt.ours, tt.err, tt.engine, tt.asking)
			got := levels(found)
			if len(got) != len(tt.want) {
				t.Fatalf("found %+v, want %v", found, tt.want)
			}
			for id, level := range tt.want {
				if got[id] != level {
					t.Errorf("found %+v, want %v", found, tt.want)
				}
			}
		})
	}
}

func TestOffers(t *testing.T) {
	one := api.Offer{Server: "10.77.0.1", Address: "10.77.0.50/24"}
	other := api.Offer{Server: "10.77.0.9", Address: "10.77.0.90/24"}
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Offers: []api.Offer{one, one}}))
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Offers: []api.Offer{one, other}}), DiscoverTwoServer)
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Hint: "nothing came back"}), DiscoverSilent)
	one.Problem = "no mask"
	finds(t, judgeOffers("a/b", "net1", api.ProbeReport{Offers: []api.Offer{one}}), DiscoverUnusable)
}

// A DISCOVER is sent where an address is given by us, and nowhere else.
func TestDiscoverOnANamedNetwork(t *testing.T) {
	asking := []pluginConf{{Type: "bridge"}}
	asking[0].IPAM.Type = ipamType
	c := &cluster{networks: []definition{{name: "a/ours", ours: true}, {name: "a/asks", plugins: asking}, {name: "a/plain", plugins: []pluginConf{{Type: "bridge"}}}}}
	for _, tt := range []struct {
		name, dhcpSocket string
		want             []ID
	}{
		{"a/ours", "", nil},
		{"a/asks", "/run/cni/dhcp.sock", nil},
		{"a/asks", "", []ID{DiscoverUnmarked}},
		{"a/plain", "/run/cni/dhcp.sock", []ID{DiscoverUnmarked}},
		{"a/none", "", []ID{DiscoverUnknown}},
	} {
		t.Run(tt.name+" "+tt.dhcpSocket, func(t *testing.T) {
			e := examination{cfg: Config{DHCPSocket: tt.dhcpSocket}, cluster: c}
			finds(t, e.judgeNamed(tt.name), tt.want...)
		})
	}
}

// A network may be named as its configuration calls it, if that is clear.
func TestDiscoverOnANetworkByItsOwnName(t *testing.T) {
	named := func(name, config string) nadv1.NetworkAttachmentDefinition { return nad(name, config, nil) }
	defined := &cluster{networks: defineAll([]nadv1.NetworkAttachmentDefinition{
		named("office", `{"cniVersion":"1.0.0","name":"office-lan","type":"dhcp-meta",`+macv+`}`), named("nameless", `{"cniVersion":"1.0.0","type":"dhcp-meta",`+macv+`}`),
		named("a", head+`"type":"dhcp-meta",`+macv+`}`), named("b", head+`"type":"dhcp-meta",`+macv+`}`), named("file", ""), named("cut", `{`),
	})}
	unknown := &cluster{networkErr: errors.New("forbidden")}
	kept := func(pairs ...string) (all []attachment) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, attachment{Network: pairs[i], NAD: pairs[i+1], State: "BOUND"})
		}
		return all
	}
	for name, tt := range map[string]struct {
		cluster     *cluster
		attachments []attachment
		network     string
		want        string
		found       []ID
		on          bool // that an attachment is found
	}{
		"its own name":            {defined, kept("office-lan", "shop/office"), "office-lan", "shop/office", nil, true},
		"its definition":          {defined, kept("office-lan", "shop/office"), "shop/office", "shop/office", nil, true},
		"none in it":              {defined, nil, "nameless", "shop/nameless", nil, false},
		"in a file":               {defined, nil, "file", "shop/file", []ID{DiscoverUnmarked}, false},
		"several":                 {defined, nil, "n", "", []ID{DiscoverUnknown}, false},
		"nobody's":                {defined, kept("lab", "shop/lab"), "lab", "lab", []ID{DiscoverUnknown}, true},
		"no cluster":              {nil, kept("office-lan", "shop/office", "office-lan", "shop/office"), "office-lan", "office-lan", nil, true},
		"no cluster, no other":    {nil, kept("office-lan", ""), "office-lan", "office-lan", nil, true},
		"no cluster, several":     {nil, kept("office-lan", "shop/office", "office-lan", "depot/office"), "office-lan", "", []ID{DiscoverUnknown}, false},
		"no cluster, nobody's":    {nil, kept("office-lan", "shop/office"), "office", "office", nil, false},
		"definitions not read":    {unknown, kept("office-lan", "shop/office"), "office-lan", "office-lan", nil, true},
		"definitions, by another": {unknown, kept("office-lan", "shop/office"), "shop/office", "shop/office", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := examination{cluster: tt.cluster, attachments: tt.attachments}
			got, found := e.called(tt.network)
			if got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
			if found == nil {
				found = e.judgeNamed(got)
			}
			finds(t, found, tt.found...)
			if _, on := e.attachmentOn(got); on != tt.on {
				t.Errorf("an attachment is on it: %v, want %v", on, tt.on)
			}
		})
	}
}

// The interface on a network is known by what the engine has of it, or by what Multus
// wrote on its pod.
func TestAttachmentOnANetwork(t *testing.T) {
	pod := func(status string) *cluster {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Annotations: map[string]string{nadv1.NetworkStatusAnnot: status}}}
		return &cluster{pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "p"}}, p}}
	}
	of := func(nad, state string) attachment {
		a := attachment{NAD: nad, State: state}
		a.Network, a.IfName, a.Pod.Namespace, a.Pod.Name = "office", "net1", "a", "p"
		return a
	}
	const here = `[{"name":"a/office","interface":"net1"}]`
	for name, tt := range map[string]struct {
		cluster     *cluster
		attachments []attachment
		want        string // its state; empty: none
	}{
		"its definition":               {nil, []attachment{of("a/office", "BOUND")}, "BOUND"},
		"its definition, no status":    {pod(""), []attachment{of("a/office", "SELECTING")}, "SELECTING"},
		"its definition, another's":    {pod(`[{"name":"a/other","interface":"net1"}]`), []attachment{of("a/office", "BOUND")}, "BOUND"},
		"another definition":           {pod(""), []attachment{of("a/other", "BOUND")}, ""},
		"the status of its pod":        {pod(here), []attachment{of("", "BOUND")}, "BOUND"},
		"the status of its other link": {pod(`[{"name":"a/office","interface":"net2"}]`), []attachment{of("", "BOUND")}, ""},
		"a pod that is not known":      {&cluster{}, []attachment{of("", "BOUND")}, ""},
		"the name of the network":      {nil, []attachment{of("", "BOUND")}, "BOUND"},
		"one with a lease first":       {nil, []attachment{of("a/office", "SELECTING"), of("a/office", "BOUND"), of("a/office", "SELECTING")}, "BOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			e := examination{cluster: tt.cluster, attachments: tt.attachments}
			a, ok := e.attachmentOn("a/office")
			if ok != (tt.want != "") || a.State != tt.want {
				t.Errorf("%v, %+v; want %q", ok, a, tt.want)
			}
		})
	}
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
