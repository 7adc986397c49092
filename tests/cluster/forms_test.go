package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/kube"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// form is a way to put dhcp-meta before, around or behind another plugin.
type form struct {
	name string
	// config is the network's, nad its definition "<namespace>/<name>".
	config func(nad, mac string) object
	marks  map[string]string
	// wrapped is the plugin that makes the interface; ovn says that the cluster has
	// OVN-Kubernetes's entry for it.
	wrapped string
	ovn     bool
	// byUs says that dhcp-meta calls the plugin, and not Multus.
	byUs bool
}

// forms are all that an ordinary Multus serves; interposedForms need it to search
// the wrappers first.
var forms = []form{
	{name: "delegate", wrapped: "macvlan", byUs: true, config: func(_, mac string) object {
		return object{"cniVersion": "1.0.0", "name": "site", "type": "dhcp-meta", "delegate": wire("macvlan", object{"mac": mac})}
	}},
	{name: "delegate with ipam of type dhcp", wrapped: "macvlan", byUs: true, config: func(_, mac string) object {
		return object{"cniVersion": "1.0.0", "name": "site", "type": "dhcp-meta",
			"delegate": wire("macvlan", object{"mac": mac, "ipam": object{"type": "dhcp"}})}
	}},
	{name: "delegate in a list with tuning", wrapped: "macvlan", byUs: true, config: func(_, mac string) object {
		return object{"cniVersion": "1.0.0", "name": "site", "plugins": []object{
			{"type": "dhcp-meta", "delegate": wire("macvlan", object{"mac": mac})},
			{"type": "tuning", "sysctl": object{"net.ipv4.conf.IFNAME.arp_notify": "1"}},
		}}
	}},
	{name: "chained", wrapped: "macvlan", config: func(_, mac string) object {
		return object{"cniVersion": "1.0.0", "name": "site", "plugins": []object{wire("macvlan", object{"mac": mac}), {"type": "dhcp-meta"}}}
	}},
	{name: "both keys", wrapped: ovnPlugin, ovn: true, byUs: true, config: func(nad, mac string) object {
		return object{"cniVersion": "1.0.0", "name": "site", "type": "dhcp-meta", "netAttachDefName": nad,
			"plugins": []object{localnet(nad, object{"mac": mac})}, "dhcp": object{}}
	}},
}

var interposedForms = []form{
	{name: "interposed, dhcp object", wrapped: ovnPlugin, ovn: true, byUs: true, config: func(nad, mac string) object {
		return localnet(nad, object{"mac": mac, "dhcp": object{}})
	}},
	{name: "interposed, annotation", wrapped: ovnPlugin, ovn: true, byUs: true, marks: map[string]string{"dhcp-meta.io/ipam": "dhcp"},
		config: func(nad, mac string) object {
			return localnet(nad, object{"mac": mac})
		}},
}

// Multus finds the plugin that the network names, and it gets the call that it would
// have got without us, but for our keys; it sets no address, and the leased one is
// in the network status. Field case B89: every shape of a network is one of ours.
func TestK49K50K52K60B89Forms(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{})
	formsOn(t, l, forms)
}

// The same with our program under the wrapped plugin's name, before it. The wrapped
// plugin makes the interface in its own process, as OVN-Kubernetes' does in
// unprivileged mode (P04); tests/ovnkube has the other one, whose server makes it.
func TestP04K49K50K52K60Interposed(t *testing.T) {
	t.Parallel()
	l := newLab(t, kube.Multus{Interposed: true})
	formsOn(t, l, interposedForms)
}

func formsOn(t *testing.T, l *lab, forms []form) {
	server := rig.StartDnsmasq(t, l.Server, rig.Pool(0, 0))
	for i, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			nad, mac := "net-"+string(rune('a'+i)), "0a:77:00:00:00:0"+string(rune('1'+i))
			l.network(t, nad, f.config(l.ns+"/"+nad, mac), f.marks)
			s := l.pod(t, nad)
			if f.ovn {
				s = l.ovnPod(t, nad, mac)
			}
			mark := l.Capture.Len()
			s.Add(t)
			addr := l.leased(t, s, "net1", server)
			if got := s.HardwareAddr(t, "net1").String(); got != mac {
				t.Errorf("net1 has the MAC %s, the wrapped plugin was told %s", got, mac)
			}
			l.expectCall(t, s, f)
			if eth0 := s.Addresses(t, "eth0"); len(eth0) != 1 || !strings.HasPrefix(eth0[0].Addr.String(), "10.244.0.") {
				t.Errorf("eth0 of the default network has %v", eth0)
			}
			l.expectPing(t, s, addr)

			s.Del(t)
			server.AwaitHeld(t, "empty", rig.Nothing)
			if dels := l.called(t, s, f.wrapped, "net1", "DEL"); len(dels) != 1 {
				t.Errorf("%s was called for DEL %d times, want once", f.wrapped, len(dels))
			}
			l.expectGone(t, s, "net1")
			l.engine.AwaitNoRecords(t)
			for _, frame := range l.Capture.Since(mark) {
				if frame.Msg.ClientHWAddr.String() != mac {
					t.Errorf("DHCP for another MAC: %v", frame)
				}
			}
		})
	}
}

// expectCall checks how the wrapped plugin was called for ADD.
func (l *lab) expectCall(t *testing.T, s *kube.Sandbox, f form) {
	t.Helper()
	calls := l.called(t, s, f.wrapped, "net1", "ADD")
	if len(calls) != 1 {
		t.Fatalf("%s was called for ADD %d times, want once: %+v", f.wrapped, len(calls), l.calls.Calls(t))
	}
	call := calls[0]
	if call.Netns != s.Path {
		t.Errorf("CNI_NETNS %q, want %q", call.Netns, s.Path)
	}
	for _, arg := range []string{"K8S_POD_NAMESPACE=" + l.ns, "K8S_POD_NAME=" + s.Pod, "K8S_POD_UID=" + s.UID, "K8S_POD_INFRA_CONTAINER_ID=" + s.ID} {
		if !slices.Contains(strings.Split(call.Args, ";"), arg) {
			t.Errorf("CNI_ARGS %q has no %s", call.Args, arg)
		}
	}
	if !slices.Contains(strings.Split(call.Path, ":"), node.Plugins) {
		t.Errorf("CNI_PATH %q", call.Path)
	}
	conf := keys(t, call.Stdin)
	for _, ours := range []string{"dhcp", "delegate", "plugins", "ipam"} {
		if raw, has := conf[ours]; has && (f.byUs || ours != "ipam") {
			t.Errorf("%s was given %q: %s", f.wrapped, ours, raw)
		}
	}
	for key, want := range map[string]string{"type": f.wrapped, "name": "site", "cniVersion": "1.0.0", "master": rig.Uplink, "mode": "bridge"} {
		if got := string(conf[key]); got != `"`+want+`"` {
			t.Errorf("%s was given %s %s, want %q", f.wrapped, key, got, want)
		}
	}
}

func (l *lab) expectGone(t *testing.T, s *kube.Sandbox, ifName string) {
	t.Helper()
	if out, err := s.TryIP("link", "show", "dev", ifName); err == nil {
		t.Errorf("%s is there after DEL: %s", ifName, out)
	}
}

// expectPing checks that the pod reaches the server from its leased address.
func (l *lab) expectPing(t *testing.T, s *kube.Sandbox, from netip.Addr) {
	t.Helper()
	l.node.Run(t, "nsenter", "--net="+s.Path, "ping", "-c1", "-W5", "-I", from.String(), rig.ServerAddr.Addr().String())
}
