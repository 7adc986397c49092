package ovn

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Await asks ok until it says yes: what is asked for has no event that could be
// waited for. What ok says last stands in the failure.
func Await(t testing.TB, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.After(rig.Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		yes, state := ok()
		if yes {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("waited %v for %s; it is: %s", rig.Patience, what, state)
		}
	}
}

// NewLocalnet makes a switch as OVN-Kubernetes makes it for a localnet network
// without subnets, with its port to the physical network, and returns its name.
func (s *Stack) NewLocalnet(t testing.TB, network string) string {
	t.Helper()
	prefix := strings.ReplaceAll(network, "-", ".")
	name := prefix + "_ovn_localnet_switch"
	port := prefix + "_ovn_localnet_port"
	s.NB(t, "ls-add", name,
		"--", "set", "logical_switch", name, "external_ids:k8s.ovn.org/network="+network,
		"external_ids:k8s.ovn.org/topology=localnet", "external_ids:k8s.ovn.org/role=secondary",
		"--", "lsp-add", name, port, "--", "lsp-set-type", port, "localnet",
		"--", "lsp-set-addresses", port, "unknown", "--", "lsp-set-options", port, "network_name="+Physical)
	return name
}

// PortSpec is a pod's port as OVN-Kubernetes makes it.
type PortSpec struct {
	// Switch is the logical switch, Network what the network's config calls it.
	Switch, Network string
	// NAD is "<namespace>/<name>"; Index tells several interfaces of one NAD apart,
	// from 0.
	NAD   string
	Index int
	// Pod, namespace and UID.
	Namespace, Pod, UID string
	// Addresses are the MAC, and what else stands behind it: the addresses that
	// OVN-Kubernetes found in the pod's annotation.
	MAC       net.HardwareAddr
	Addresses []string
}

// NADKey is what external_ids call the network of the port.
func (p PortSpec) NADKey() string {
	if p.Index == 0 {
		return p.NAD
	}
	return fmt.Sprintf("%s/%d", p.NAD, p.Index)
}

// Name is the name of the logical switch port.
func (p PortSpec) Name() string {
	return strings.NewReplacer("-", ".", "/", ".").Replace(p.NADKey()) + "_" + p.Namespace + "_" + p.Pod
}

// Values is what OVN-Kubernetes computes for both columns.
func (p PortSpec) Values() string {
	return strings.Join(append([]string{p.MAC.String()}, p.Addresses...), " ")
}

// WriteLSP writes the logical switch port as the controller does at ADD and when it
// starts again: a port that is there gets both columns anew.
func (s *Stack) WriteLSP(t testing.TB, p PortSpec) {
	t.Helper()
	name := p.Name()
	s.NB(t, "--may-exist", "lsp-add", p.Switch, name,
		"--", "set", "logical_switch_port", name,
		fmt.Sprintf("addresses=%q", p.Values()), fmt.Sprintf("port_security=%q", p.Values()),
		"external_ids:pod=true", "external_ids:namespace="+p.Namespace,
		"external_ids:k8s.ovn.org/nad="+quoted(p.NADKey()), "external_ids:k8s.ovn.org/network="+quoted(p.Network),
		"external_ids:k8s.ovn.org/topology=localnet",
		"options:iface-id-ver="+quoted(p.UID), "options:requested-chassis="+Chassis)
}

// DeleteLSP removes the port as the controller does when the pod has gone.
func (s *Stack) DeleteLSP(t testing.TB, p PortSpec) {
	t.Helper()
	s.NB(t, "--if-exists", "lsp-del", p.Name())
}

// quoted is a string as ovn-nbctl takes it whatever is in it.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return string(b)
}

var plugs atomic.Int64

// Plug makes the pod's interface and joins it to the port, as OVN-Kubernetes's CNI
// server does; it waits until the port's flows are there. It returns the interface
// on the node.
func (s *Stack) Plug(t testing.TB, pod *rig.Sandbox, ifName string, p PortSpec) string {
	t.Helper()
	host := fmt.Sprintf("p%d", plugs.Add(1))
	pod.IP(t, "link", "add", ifName, "address", p.MAC.String(), "type", "veth", "peer", "name", host, "netns", s.Node.Name)
	pod.IP(t, "link", "set", ifName, "up")
	NoOffload(t, pod.Netns, ifName)
	s.Node.IP(t, "link", "set", host, "up")
	ids := []string{
		"external_ids:iface-id=" + quoted(p.Name()), "external_ids:iface-id-ver=" + quoted(p.UID),
		"external_ids:attached_mac=" + quoted(p.MAC.String()), "external_ids:sandbox=" + quoted(pod.ID),
		"external_ids:k8s.ovn.org/network=" + quoted(p.Network), "external_ids:k8s.ovn.org/nad=" + quoted(p.NADKey()),
	}
	if len(p.Addresses) > 0 {
		ids = append(ids, "external_ids:ip_addresses="+quoted(strings.Join(p.Addresses, ",")))
	}
	s.VSwitch(t, append([]string{"add-port", Integration, host, "--", "set", "interface", host}, ids...)...)
	s.VSwitch(t, "wait-until", "interface", host, "external_ids:ovn-installed=true")
	s.NB(t, "wait-until", "logical_switch_port", p.Name(), "up=true")
	return host
}

// Unplug takes the pod's interface away, and with it its port on the node.
func (s *Stack) Unplug(t testing.TB, host string) {
	t.Helper()
	s.VSwitch(t, "--if-exists", "del-port", Integration, host)
	s.Node.IP(t, "link", "del", host)
}

// AddPort is WriteLSP and Plug.
func (s *Stack) AddPort(t testing.TB, pod *rig.Sandbox, ifName string, p PortSpec) string {
	t.Helper()
	s.WriteLSP(t, p)
	return s.Plug(t, pod, ifName, p)
}

// LSP is a logical switch port as the north database has it.
type LSP struct {
	UUID                    string
	Addresses, PortSecurity []string
	Options, ExternalIDs    map[string]string
	Up                      bool
}

// LSP reads a port; false when there is none of that name.
func (s *Stack) LSP(t testing.TB, name string) (LSP, bool) {
	t.Helper()
	out := s.NB(t, "--format=json", "--columns=_uuid,addresses,port_security,options,external_ids,up",
		"find", "logical_switch_port", "name="+quoted(name))
	var table struct {
		Data [][]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil {
		t.Fatalf("ovn-nbctl printed no table: %v in %s", err, out)
	}
	if len(table.Data) == 0 {
		return LSP{}, false
	}
	row := table.Data[0]
	up := atoms(t, row[5])
	return LSP{
		UUID:      atoms(t, row[0])[0],
		Addresses: atoms(t, row[1]), PortSecurity: atoms(t, row[2]),
		Options: pairs(t, row[3]), ExternalIDs: pairs(t, row[4]),
		Up: slices.Equal(up, []string{"true"}),
	}, true
}

// atoms decodes an atom or a set of the database's JSON, in order.
func atoms(t testing.TB, raw json.RawMessage) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	list, ok := v.([]any)
	if !ok {
		return []string{fmt.Sprint(v)}
	}
	if list[0] == "uuid" {
		return []string{fmt.Sprint(list[1])}
	}
	var all []string
	for _, e := range list[1].([]any) {
		all = append(all, fmt.Sprint(e))
	}
	slices.Sort(all)
	return all
}

func pairs(t testing.TB, raw json.RawMessage) map[string]string {
	t.Helper()
	var v []any
	if err := json.Unmarshal(raw, &v); err != nil || len(v) != 2 {
		t.Fatalf("%v in %s", err, raw)
	}
	m := map[string]string{}
	for _, kv := range v[1].([]any) {
		pair := kv.([]any)
		m[fmt.Sprint(pair[0])] = fmt.Sprint(pair[1])
	}
	return m
}

// AwaitLSP waits until a port satisfies ok.
func (s *Stack) AwaitLSP(t testing.TB, name, what string, ok func(LSP) bool) LSP {
	t.Helper()
	var p LSP
	Await(t, name+" "+what, func() (bool, string) {
		var there bool
		p, there = s.LSP(t, name)
		return there && ok(p), fmt.Sprintf("%+v", p)
	})
	return p
}
