package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/kube"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

func (c *cluster) readNetworks(ctx context.Context) {
	list, err := c.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		c.networkErr = err
		return
	}
	c.networks = defineAll(list.Items)
}

// networks are the definitions that are known.
func (e *examination) networks() []definition {
	if e.cluster == nil {
		return nil
	}
	return e.cluster.networks
}

func (e *examination) checkNetworks(context.Context) ([]Finding, string) {
	switch {
	case e.cluster == nil:
		return nil, ""
	case apierrors.IsNotFound(e.cluster.networkErr):
		return []Finding{{DefinitionsMissing, Error, "the cluster knows no NetworkAttachmentDefinitions", e.cluster.networkErr.Error(),
			"install Multus, whose manifest has that CRD"}}, ""
	case e.cluster.networkErr != nil:
		return nil, "" // the right that is missing was told of
	}
	var found []Finding
	ours := 0
	for _, d := range e.cluster.networks {
		if d.ours {
			ours++
			found = append(found, e.judgeNetwork(d)...)
			found = append(found, judgeMasters(d, linkState)...)
			continue
		}
		found = append(found, judgeMisread(d)...)
	}
	found = append(found, judgeMarks(e.cluster.networks, filepath.Join(e.cfg.StateDir, api.NetworksFile))...)
	return found, fmt.Sprintf("definitions: %d, for DHCP: %d", len(e.cluster.networks), ours)
}

// judgeNetwork holds a network of ours against the rules of an ADD, and against what
// takes its time there.
func (e *examination) judgeNetwork(d definition) (found []Finding) {
	found = append(found, e.judgeADD(d)...)
	for _, p := range d.plugins {
		switch {
		case p.IPAM.Type == "":
		case p.Type == ovnType:
			found = append(found, Finding{NetworkIPAM, Error, "OVN-Kubernetes does not take network " + d.name + ": it has ipam",
				seen("ipam.type is %q in its configuration", p.IPAM.Type), "take ipam out; that its addresses come by DHCP is said by the mark alone"})
		case p.IPAM.Type != "static" && p.IPAM.Type != ipamType: // static for IPv6 beside DHCP is a use
			found = append(found, Finding{NetworkIPAM, Warning, "interfaces on network " + d.name + " get another address besides the leased one",
				seen("ipam.type of plugin %s is %q", p.Type, p.IPAM.Type), "take ipam out, unless both addresses are meant"})
		}
	}
	if need := slowest(d.settings); d.settings.Timeout > 0 && d.settings.Timeout < need {
		found = append(found, Finding{NetworkTimeout, Warning, "ADDs on network " + d.name + " may end before a healthy server has answered",
			seen("timeout is %s; a server that pings an address before it offers it takes 3 s, and with conflictDetection %s it takes %s in all",
				d.settings.Timeout, d.settings.ConflictDetection, need),
			"leave timeout out: then it is what the runtime leaves, 110 s"})
	}
	for _, place := range []struct{ key, has, want string }{
		{"socket", d.settings.Socket, e.cfg.Socket},
		{"stateDir", d.settings.StateDir, e.cfg.StateDir},
	} {
		if place.has != place.want && place.has != network.DefaultSocket && place.has != network.DefaultStateDir {
			found = append(found, Finding{NetworkElsewhere, Error, "network " + d.name + " asks another engine",
				seen("its %s is %s, the engine's is %s", place.key, place.has, place.want), "take " + place.key + " out of its dhcp object"})
		}
	}
	return found
}

// judgeMisread tells of a network that somebody may have meant to be ours.
func judgeMisread(d definition) []Finding {
	if d.misread == "" {
		return nil
	}
	return []Finding{{NetworkWrong, Warning, "network " + d.name + " has a key dhcp, and gets no address by DHCP",
		seen("dhcp is %s, not an object, so its plugin is called as if we were not there", d.misread), "if DHCP by us is meant, " + d.simplest("write \"dhcp\": {}")}}
}

// judgeADD tells why an ADD on a network of ours fails, or is not what it seems to be.
func (e *examination) judgeADD(d definition) []Finding {
	const mend = "mend the definition, or the ClusterUserDefinedNetwork that it is made from"
	wrong := func(level Level, what, how, do string) []Finding {
		return []Finding{{NetworkWrong, level, what, how, do}}
	}
	refused := d.refused // the plugin looks before it asks the engine
	if slices.Contains(d.names, d.name) {
		refused = also(refused, d.described)
	}
	fails := func(err error) string {
		return fmt.Sprintf("each ADD on network %s fails with code %d", d.name, api.CodeOf(err))
	}
	switch {
	case d.unread != nil:
		return wrong(Error, "each ADD on network "+d.name+" fails: Multus cannot read its configuration", d.unread.Error(), mend)
	case d.passed && d.annotated:
		return wrong(Error, "network "+d.name+" gets no address by DHCP: its plugin is not told that it is marked",
			seen("it is marked by an annotation, and netAttachDefName of its configuration does not say %q%s", d.name, besides(d.described)),
			d.simplest(fmt.Sprintf("set \"netAttachDefName\": %q in it, or \"dhcp\": {} in the place of the annotation", d.name)))
	case d.passed:
		return wrong(Warning, "it is its plugin's affair whether network "+d.name+" gets an address by DHCP",
			"a dhcp object, or our type, stands deeper in its configuration than the plugins that Multus calls",
			"unless that one calls another plugin with what it has, "+d.simplest("write \"dhcp\": {} beside the type of the plugin that makes the interface"))
	case len(refused) > 0:
		return wrong(Error, fails(refused[0]), errors.Join(refused...).Error(), mend)
	}
	remedy := fmt.Sprintf("write \"netAttachDefName\": %q, or take it out", d.name)
	var found []Finding
	for _, name := range d.names {
		if name == d.name {
			continue
		}
		how := seen("netAttachDefName in its configuration is %q", name)
		i := slices.IndexFunc(e.networks(), func(other definition) bool { return other.name == name })
		if i < 0 {
			found = append(found, wrong(Error, fails(errNoDefinition), how+", and "+errNoDefinition.Error(), remedy)...)
			continue
		}
		if err := kube.Refusal(d.nad, e.networks()[i].nad); err != nil {
			found = append(found, wrong(Error, fails(err), how+", of which: "+err.Error(), remedy)...)
			continue
		}
		found = append(found, wrong(Warning, "network "+d.name+" goes by the annotations of another one, "+name, how, remedy)...)
	}
	return found
}

// errNoDefinition is what the engine has against a name that nobody has.
var errNoDefinition = api.WithCode(api.CodeConfig, errors.New("there is no such definition"))

// besides adds an error to what is said, where there is one.
func besides(err error) string {
	if err == nil {
		return ""
	}
	return "; besides: " + err.Error()
}

// slowest is how long an ADD may take with a server that is well: its ping check, a
// first DISCOVER that is lost, and our own look for conflicts (RFC 5227, 2.1.1).
func slowest(s network.Settings) time.Duration {
	const ping, resend = 3 * time.Second, 4 * time.Second
	probing := map[network.ConflictDetection]time.Duration{
		network.ConflictDetectionFast: 250 * time.Millisecond,
		network.ConflictDetectionFull: 7 * time.Second,
	}[s.ConflictDetection]
	return (ping + resend + probing).Round(time.Second)
}

// linkState tells of an interface of the node.
func linkState(name string) (up bool, err error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return false, err
	}
	return i.Flags&net.FlagUp != 0, nil
}

func judgeMasters(d definition, state func(string) (up bool, err error)) (found []Finding) {
	for _, p := range d.plugins {
		if p.Master == "" || p.InContainer {
			continue
		}
		up, err := state(p.Master)
		switch {
		case err != nil:
			found = append(found, Finding{MasterMissing, Warning, "network " + d.name + " has no interface on this node to stand on",
				seen("master of plugin %s is %s: %v", p.Type, p.Master, err), "mend master, or keep pods of this network from this node"})
		case !up:
			found = append(found, Finding{MasterDown, Warning, "the interface under network " + d.name + " is down on this node",
				seen("master of plugin %s is %s, and is not up", p.Type, p.Master), "ip link set " + p.Master + " up, and find who has it down"})
		}
	}
	return found
}

// judgeMarks holds the list that plugins read while no engine answers against the
// marks of now.
func judgeMarks(networks []definition, path string) []Finding {
	want := []string{}
	for _, d := range networks {
		if d.annotated {
			want = append(want, d.name)
		}
	}
	slices.Sort(want)
	var have api.Networks
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &have)
	}
	if err == nil && slices.Equal(want, have.Marked) {
		return nil
	}
	how := fmt.Sprintf("%s has %s, the API has %s", path, cmp.Or(strings.Join(have.Marked, ", "), "none"), cmp.Or(strings.Join(want, ", "), "none"))
	if err != nil {
		how = err.Error()
	}
	return []Finding{{MarksStale, Warning, "plugins do not know which networks are marked while the engine is away", how,
		"the engine writes the list when networks change: does it run, and see the API? its log says why not"}}
}
