package doctor

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// mistake is something that people do to a node or a cluster.
type mistake struct {
	name string
	// harm does it and returns what undoes it; nil: it is in the visit alone.
	harm func(t *testing.T, c *clinic) (mend func())
	visit
	// note is a note that must be among the findings, want are all that are worse.
	note doctor.ID
	want []doctor.ID
	// do is what these findings must have people do, in part.
	do []string
	// says is an area of which all must be well; empty: none.
	says doctor.ID
}

// A healthy node has nothing to mend; each mistake is named, with what follows of it
// and nothing else; and the node is well when it was mended.
func TestB89B93EachMistakeIsNamed(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	healthy := c.expect(t, visit{}, "")
	if healthy.Count(doctor.Note) > 0 {
		t.Errorf("notes on a healthy node: %+v", healthy.Findings)
	}
	for _, area := range []doctor.ID{
		doctor.AreaKernel, doctor.AreaEngine, doctor.AreaState, doctor.AreaKubernetes, doctor.AreaNamespaces, doctor.AreaNetworks,
		doctor.AreaMultus, doctor.AreaPlugins, doctor.AreaOVN, doctor.AreaVFIO,
	} {
		if !well(healthy, area) {
			t.Errorf("nothing is said of %s on a healthy node: %+v", area, healthy.Findings)
		}
	}
	named := map[doctor.ID]bool{}
	for _, m := range slices.Concat(engineMistakes(), nodeMistakes(), pluginMistakes(), multusMistakes(), networkMistakes(), clusterMistakes()) {
		mend := func() {}
		if m.harm != nil {
			mend = m.harm(t, c) // of this test: what it starts outlives the subtest
		}
		t.Run(m.name, func(t *testing.T) {
			report := c.expect(t, m.visit, m.note, m.want...)
			if m.says != "" && !well(report, m.says) {
				t.Errorf("nothing is said of %s: %+v", m.says, report.Findings)
			}
			for _, do := range m.do {
				if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
					return (f.ID == m.note || slices.Contains(m.want, f.ID)) && strings.Contains(f.Do, do)
				}) {
					t.Errorf("nobody is told to %s: %+v", do, report.Findings)
				}
			}
			named[m.note] = true
			for _, id := range m.want {
				named[id] = true
			}
		})
		mend()
	}
	c.expect(t, visit{}, "")
	delete(named, "")
	t.Logf("findings provoked: %d: %v", len(named), slices.Sorted(maps.Keys(named)))
	if len(named) < 30 {
		t.Errorf("%d mistakes were named", len(named))
	}
	t.Run("no definitions at all", func(t *testing.T) { // nothing brings these back
		c.kube.Kubectl(t, "", "delete", "crd", "network-attachment-definitions.k8s.cni.cncf.io")
		c.expect(t, visit{}, "", doctor.DefinitionsMissing)
	})
}

// well tells whether a report says that an area is in order.
func well(r doctor.Report, area doctor.ID) bool {
	return slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.ID == area && f.Level == doctor.OK })
}

func env(pairs ...string) visit {
	v := visit{env: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		v.env[pairs[i]] = pairs[i+1]
	}
	return v
}

func by(program ...string) visit { return visit{by: program} }

func args(a ...string) visit { return visit{args: a} }

// onNetwork asks on one of the clinic's networks, whose namespace is made with it.
func onNetwork(t *testing.T, c *clinic, name string) visit {
	t.Helper()
	return args("--network=" + c.ns + "/" + name)
}

// A DISCOVER is answered on the network of a pod that is there; what it says is what
// the server would give.
func TestU27DiscoverOnANetwork(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	t.Run("answered", func(t *testing.T) {
		report := c.expect(t, onNetwork(t, c, "office"), "")
		if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
			return f.ID == doctor.AreaDiscover && f.Level == doctor.OK && contains(f.What, rig.ServerAddr.Addr().String(), "10.77.0.")
		}) {
			t.Errorf("no offer is told of: %+v", report.Findings)
		}
	})
	t.Run("by the name in its configuration", func(t *testing.T) {
		if report := c.expect(t, args("--network=office"), ""); !well(report, doctor.AreaDiscover) {
			t.Errorf("it is not asked on: %+v", report.Findings)
		}
		defer c.network(t, "annex", wire("macvlan", rig.Uplink), nil)()
		c.expect(t, args("--network=office"), "", doctor.DiscoverUnknown)
	})
	t.Run("silence", func(t *testing.T) {
		c.server.Stop(t)
		c.expect(t, onNetwork(t, c, "office"), "", doctor.DiscoverSilent)
	})
	t.Run("silence while an ADD waits", func(t *testing.T) { discoverWhileAnAddWaits(t, c) })
	t.Run("no mask", func(t *testing.T) {
		cfg := rig.Pool(0, 0)
		cfg.LeaseFile, cfg.Dnsmasq = c.server.Config().LeaseFile, []string{"--dhcp-option=option:netmask"}
		server := rig.RunDnsmasq(t, c.Server, cfg)
		defer server.Stop(t)
		c.expect(t, onNetwork(t, c, "office"), "", doctor.DiscoverUnusable)
	})
	t.Run("two servers", func(t *testing.T) {
		c.server = rig.RunDnsmasq(t, c.Server, c.server.Config())
		second(t, c)
		c.expect(t, onNetwork(t, c, "office"), "", doctor.DiscoverTwoServer)
	})
	for name, want := range map[string]doctor.ID{
		"localnet": doctor.DiscoverNoPod, "plain": doctor.DiscoverUnmarked, "nowhere": doctor.DiscoverUnknown,
	} {
		t.Run(name, func(t *testing.T) { c.expect(t, onNetwork(t, c, name), "", want) })
	}
	t.Run("a network of the dhcp plugin", func(t *testing.T) {
		defer c.network(t, "asks", asks, nil)()
		visit := onNetwork(t, c, "asks")
		c.expect(t, visit, "", doctor.DHCPSocketMissing, doctor.DiscoverUnmarked)
		visit.env = map[string]string{"DHCP_ENGINE_DHCP_SOCKET": node.Socket}
		c.expect(t, visit, "", doctor.DiscoverNoPod)
	})
	t.Run("interface taken away", func(t *testing.T) {
		pod := c.engine.Leases(t)[0].Netns
		c.node.Run(t, "nsenter", "--net="+pod, "ip", "link", "del", "net1")
		c.expect(t, onNetwork(t, c, "office"), "", doctor.DiscoverFailed)
	})
}

// discoverWhileAnAddWaits has the question asked in a pod that no server gives an address.
func discoverWhileAnAddWaits(t *testing.T, c *clinic) {
	c.network(t, "waiting", wire("macvlan", rig.Uplink), nil)
	pod := c.kube.Pod(t, c.ns, kube.PodSpec{Node: c.node.Name, Networks: "waiting"})
	addC := make(chan error, 1)
	go func() {
		_, err := c.runtime.Sandbox(t, pod).TryAdd(t.Context())
		addC <- err
	}()
	report := c.expect(t, onNetwork(t, c, "waiting"), "", doctor.DiscoverSilent)
	if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool { return contains(f.How, "net1 of pod "+c.ns+"/"+pod.Name) }) {
		t.Errorf("it was not asked in the pod that waits: %+v", report.Findings)
	}
	c.kube.DeletePod(t, pod)
	if err := <-addC; err == nil {
		t.Error("ADD without a server succeeds")
	}
}
