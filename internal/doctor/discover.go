package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// discover asks on a network who would give an address: by the engine, on the
// interface of a pod that is on this network already. On OVN that is the pod's own
// port, with what its switch lets through.
func (e *examination) discover(ctx context.Context) ([]Finding, string) {
	name := e.cfg.Network
	if name == "" || e.attachments == nil {
		return nil, ""
	}
	name, found := e.called(name)
	if found == nil {
		found = e.judgeNamed(name)
	}
	if found != nil {
		return found, ""
	}
	a, ok := e.attachmentOn(name)
	if !ok {
		return []Finding{{DiscoverNoPod, Warning, "no DISCOVER can be sent on network " + name + ": no pod of this node is on it",
			"the engine has no attachment of such a pod",
			"start a pod on this node with the annotation " + nadv1.NetworkAttachmentAnnot + ": " + name + ", and run this again while its ADD is tried or after it; dhcp-engine probe asks in any namespace"}}, ""
	}
	report, err := api.Client{Socket: e.cfg.Socket}.Probe(ctx, api.ProbeRequest{Netns: a.Netns, IfName: a.IfName, Timeout: api.DefaultProbe})
	on := fmt.Sprintf("%s of pod %s/%s", a.IfName, a.Pod.Namespace, a.Pod.Name)
	if err != nil {
		return []Finding{{DiscoverFailed, Error, "no DISCOVER can be sent on network " + name, seen("on %s: %v", on, err), "mend what it says"}}, ""
	}
	return judgeOffers(name, on, report), fmt.Sprintf("%s offers %s on network %s", serversOf(report), addressesOf(report), name)
}

// called finds the definition whose configuration has a name, if it is one alone. A name
// with a slash is a definition's own: no configuration has such a name.
func (e *examination) called(name string) (string, []Finding) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var of []string
	known := e.cluster != nil && e.cluster.networkErr == nil
	for _, d := range e.networks() {
		if d.network == name {
			of = append(of, d.name)
		}
	}
	for _, a := range e.attachments {
		if !known && a.Network == name && a.NAD != "" {
			of = append(of, a.NAD)
		}
	}
	slices.Sort(of)
	switch of = slices.Compact(of); {
	case len(of) > 1:
		return "", []Finding{{DiscoverUnknown, Error, "several networks are called " + name + " in their configurations", strings.Join(of, ", "), "name one of them"}}
	case len(of) == 1 && known:
		return of[0], nil
	}
	return name, nil
}

// judgeNamed refuses a network that cannot be asked on.
func (e *examination) judgeNamed(name string) []Finding {
	if e.cluster == nil || e.cluster.networkErr != nil {
		return nil
	}
	all := e.cluster.networks
	i := slices.IndexFunc(all, func(d definition) bool { return d.name == name })
	switch {
	case i < 0:
		return []Finding{{DiscoverUnknown, Error, "there is no network " + name, seen("the cluster has %d NetworkAttachmentDefinitions, and none of that name", len(all)),
			"write namespace/name as kubectl get net-attach-def -A has them, or the name in its configuration"}}
	case all[i].asksDaemon() && e.cfg.DHCPSocket == "":
		return []Finding{{DiscoverUnmarked, Error, "network " + name + " is not for DHCP by us", "it asks the plugin dhcp, and --dhcp-socket is off", e.dropIn()}}
	case all[i].ours, all[i].asksDaemon():
	default:
		return []Finding{{DiscoverUnmarked, Error, "network " + name + " is not for DHCP by us", "it has neither our annotation nor a dhcp object nor our type",
			"if it shall be, " + all[i].simplest("mark it by the annotation dhcp-meta.io/ipam: dhcp")}}
	}
	return nil
}

// attachmentOn is one whose interface is on the network, as the engine knows it or
// Multus wrote on its pod; one with a lease before others.
func (e *examination) attachmentOn(name string) (best attachment, ok bool) {
	for _, a := range e.attachments {
		if !lives(a.State) || ok && a.State != "BOUND" {
			continue
		}
		if e.onNetwork(a, name) {
			best, ok = a, true
		}
	}
	return best, ok
}

func (e *examination) onNetwork(a attachment, name string) bool {
	if a.NAD == name || a.Network == name { // also in the middle of its ADD
		return true
	}
	if e.cluster == nil {
		_, short, _ := strings.Cut(name, "/")
		return a.Network == short
	}
	for _, pod := range e.cluster.pods {
		if pod.Namespace != a.Pod.Namespace || pod.Name != a.Pod.Name {
			continue
		}
		var status []nadv1.NetworkStatus
		_ = json.Unmarshal([]byte(pod.Annotations[nadv1.NetworkStatusAnnot]), &status) // none yet: not this pod
		return slices.ContainsFunc(status, func(s nadv1.NetworkStatus) bool { return s.Name == name && s.Interface == a.IfName })
	}
	return false
}

func judgeOffers(name, on string, r api.ProbeReport) (found []Finding) {
	how := seen("%d DHCPDISCOVER on %s within %s", r.Discovers, on, r.Waited.Round(10*time.Millisecond))
	switch {
	case len(r.Offers) == 0:
		return []Finding{{DiscoverSilent, Error, "no DHCP server answers on network " + name, how + ": " + r.Hint,
			"follow docs/operations.md, \"An address is missing\", from step 3: link, VLAN, relay, filters on UDP ports 67 and 68, the server's log"}}
	case !slices.ContainsFunc(r.Offers, func(o api.Offer) bool { return o.Problem == "" }):
		return []Finding{{DiscoverUnusable, Error, "servers answer on network " + name + ", and no offer can be used", how + ": " + r.Offers[0].Problem,
			"mend the server's configuration of this network"}}
	}
	if servers := serversOf(r); strings.Contains(servers, ",") {
		found = append(found, Finding{DiscoverTwoServer, Warning, "more than one DHCP server answers on network " + name, how + ": " + servers,
			"is one of them not meant to? name the right ones in \"servers\" of the dhcp object"})
	}
	return found
}

func serversOf(r api.ProbeReport) string {
	return unique(r.Offers, func(o api.Offer) string { return o.Server })
}

func addressesOf(r api.ProbeReport) string {
	return unique(r.Offers, func(o api.Offer) string { return o.Address })
}

func unique(offers []api.Offer, of func(api.Offer) string) string {
	var list []string
	for _, o := range offers {
		if s := of(o); s != "" && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return strings.Join(list, ", ")
}
