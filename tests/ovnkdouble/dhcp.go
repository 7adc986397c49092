package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
)

// This file is the mode ipam.mode: DHCP (OKEP-6224), as it was merged in autumn 2026
// (go-controller/pkg/cni/dhcp_linux.go): a CNI call is the only writer of the entry of
// such an interface, and the controller goes by it. The exchange that the real one makes
// for virtual machines is not imitated: their pods get no address here.

// dhcpPlugin is where the IPAM plugin is.
const dhcpPlugin = "/opt/cni/bin/dhcp"

// modeDHCP is what the entry says then.
const modeDHCP = "dhcp"

func (c netConf) ownDHCP() bool { return c.IPAM.Type == "dhcp" }

func isVM(pod *corev1.Pod) bool { return pod.Labels["kubevirt.io"] == "virt-launcher" }

// bare writes the entry without an address, with the MAC that it had, and waits until
// the cache shows it.
func (c *cniCall) bare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, annotationLimit)
	defer cancel()
	tick := time.NewTicker(annotationPoll)
	defer tick.Stop()
	for written := false; ; {
		pod, w, err := c.get()
		if err == nil && pod.Name != "" {
			entries, err := readEntries(pod)
			if err != nil {
				return err
			}
			e, there := entries[w.key]
			switch {
			case there && len(e.IPs) == 0 && e.Mode == modeDHCP:
				return nil
			case !written:
				fresh := podNetwork{MAC: e.MAC, Role: "secondary", Mode: modeDHCP}
				if fresh.MAC == "" {
					fresh.MAC = c.newEntry(w).MAC
				}
				if err := c.writeEntry(ctx, pod, w.key, fresh); err != nil {
					return err
				}
				written = true
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("failed to get pod annotation: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// lease asks the plugin dhcp for an address, puts it on the interface, without a default
// route, and into the entry, which it returns.
func (c *cniCall) lease(ctx context.Context, pod *corev1.Pod, w wanted, e podNetwork) (podNetwork, error) {
	out, err := c.dhcp(ctx, "ADD")
	if err != nil {
		return e, fmt.Errorf("failed to execute DHCP plugin ADD: %w: %s", err, out)
	}
	var r current.Result
	if err := json.Unmarshal(out, &r); err != nil || len(r.IPs) == 0 {
		return e, fmt.Errorf("no IP addresses returned by DHCP plugin: %w: %s", err, out)
	}
	h, ns, err := c.inPod()
	if err != nil {
		return e, err
	}
	defer ns.Close()
	defer h.Close()
	link, err := h.LinkByName(c.ifName)
	if err != nil {
		return e, err
	}
	for _, ip := range r.IPs {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: &ip.Address}); err != nil && !os.IsExist(err) {
			return e, fmt.Errorf("failed to add IP %s: %w", ip.Address.String(), err)
		}
		e.IPs = append(e.IPs, ip.Address.String())
		if ip.Gateway != nil {
			e.Gateways = append(e.Gateways, ip.Gateway.String())
		}
	}
	for _, route := range r.Routes {
		if ones, _ := route.Dst.Mask.Size(); ones == 0 {
			continue // eth0 has the pod's
		}
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &route.Dst, Gw: route.GW}); err != nil && !os.IsExist(err) {
			return e, fmt.Errorf("failed to add route %s: %w", route.Dst.String(), err)
		}
	}
	if fresh, ok, err := c.podStore.GetByKey(c.namespace + "/" + c.pod); err == nil && ok {
		pod = fresh.(*corev1.Pod)
	}
	return e, c.writeEntry(ctx, pod, w.key, e)
}

// dhcp executes the plugin: with no word of the pod, and of the network its name.
func (c *cniCall) dhcp(ctx context.Context, verb string) ([]byte, error) {
	conf, err := json.Marshal(map[string]any{
		"cniVersion": c.conf.CNIVersion, "name": c.conf.Name, "type": pluginName, "ipam": map[string]any{"type": "dhcp"},
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, dhcpPlugin)
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.container, "CNI_NETNS=" + c.netns, "CNI_IFNAME=" + c.ifName,
		"CNI_PATH=/opt/cni/bin", "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = bytes.NewReader(conf)
	return cmd.Output()
}
