package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// toolTime bounds a call of OVN's tools.
const toolTime = 20 * time.Second

// tool runs a program and returns what it printed, without white space around.
func tool(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return text, nil
}

func nbctl(ctx context.Context, args ...string) (string, error) {
	return tool(ctx, "ovn-nbctl", args...)
}
func vsctl(ctx context.Context, args ...string) (string, error) {
	return tool(ctx, "ovs-vsctl", args...)
}

// quoted is a string of OVSDB as the tools take one in a set or map.
func quoted(s string) string { return `"` + s + `"` }

// ensureSwitch makes the logical switch of a localnet network.
func ensureSwitch(ctx context.Context, nad string, c netConf) error {
	ids := func(record string) []string {
		return []string{"--", "set", record, c.switchName(),
			"external_ids:k8s.ovn.org/network=" + quoted(c.Name), "external_ids:k8s.ovn.org/topology=localnet", "external_ids:k8s.ovn.org/role=secondary"}
	}
	args := append([]string{"--may-exist", "ls-add", c.switchName()}, ids("Logical_Switch")...)
	args = append(args, "--", "--may-exist", "lsp-add", c.switchName(), c.localnetName(),
		"--", "lsp-set-type", c.localnetName(), "localnet",
		"--", "lsp-set-addresses", c.localnetName(), "unknown",
		"--", "lsp-set-options", c.localnetName(), "network_name="+c.physical())
	if c.VLAN != 0 {
		args = append(args, "--", "set", "Logical_Switch_Port", c.localnetName(), fmt.Sprintf("tag_request=%d", c.VLAN))
	}
	_, err := nbctl(ctx, args...)
	if err != nil {
		return fmt.Errorf("network of %s: %w", nad, err)
	}
	return nil
}

// port is a pod's logical port.
type port struct {
	logicalSwitch, name string
	namespace, pod, uid string
	nad, network        string // empty on the default network
	mac                 string
	ips                 []string // without mask
}

// address is the value of the columns addresses and port_security.
func (p port) address() string { return strings.TrimSpace(p.mac + " " + strings.Join(p.ips, " ")) }

// ensure makes the port, or sets what it should be.
func (p port) ensure(ctx context.Context) error {
	// Both columns by set: the tool's own verbs refuse an address that another port has.
	args := []string{"--may-exist", "lsp-add", p.logicalSwitch, p.name,
		"--", "set", "Logical_Switch_Port", p.name,
		"addresses=" + quoted(p.address()), "port_security=" + quoted(p.address()),
		"options:iface-id-ver=" + quoted(p.uid),
		"external_ids:pod=true", "external_ids:namespace=" + p.namespace}
	if p.nad != "" {
		args = append(args, "external_ids:k8s.ovn.org/nad="+quoted(p.nad), "external_ids:k8s.ovn.org/network="+quoted(p.network),
			"external_ids:k8s.ovn.org/topology=localnet")
	}
	if _, err := nbctl(ctx, args...); err != nil {
		return fmt.Errorf("port of %s/%s: %w", p.namespace, p.pod, err)
	}
	return nil
}

// exists tells whether the port is there for this very pod.
func (p port) exists(ctx context.Context) bool {
	uid, err := nbctl(ctx, "--if-exists", "get", "Logical_Switch_Port", p.name, "options:iface-id-ver")
	return err == nil && strings.Trim(uid, `"`) == p.uid
}

// removePort takes a logical port away; one that is not there is no error.
func removePort(ctx context.Context, name string) error {
	_, err := nbctl(ctx, "--if-exists", "lsp-del", name)
	return err
}
