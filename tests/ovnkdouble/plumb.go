package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// installedLimit is how long ADD waits until OVN has the flows of the port.
const installedLimit = 20 * time.Second

// add plugs the interface and returns the result.
func (c *cniCall) add(ctx context.Context) ([]byte, error) {
	if c.conf.DeviceID != "" {
		return nil, errors.New("failed to get uplink representor: devices are not imitated by this double")
	}
	if c.conf.ownDHCP() {
		if err := c.bare(ctx); err != nil {
			return nil, err
		}
	}
	pod, w, e, err := c.entry(ctx)
	if err != nil {
		return nil, err
	}
	host := c.hostName(w)
	inside := e
	if _, ok := pod.Annotations["kubevirt.io/allow-pod-bridge-network-live-migration"]; ok {
		inside.IPs, inside.Gateways = nil, nil
	}
	if err := c.plug(ctx, host, inside); err != nil {
		return nil, err
	}
	name := portName(c.namespace, c.pod, "")
	ids := []string{"external_ids:sandbox=" + c.container}
	if w.key != defaultKey {
		name = portName(c.namespace, c.pod, w.key)
		ids = append(ids, "external_ids:k8s.ovn.org/network="+quoted(w.conf.Name), "external_ids:k8s.ovn.org/nad="+quoted(w.key))
	}
	ids = append(ids, "external_ids:attached_mac="+quoted(e.MAC), "external_ids:iface-id="+quoted(name), "external_ids:iface-id-ver="+quoted(string(pod.UID)))
	if len(e.IPs) > 0 {
		ids = append(ids, "external_ids:ip_addresses="+quoted(e.IPs[0]))
	}
	if err := takeOver(ctx, name); err != nil {
		return nil, err
	}
	args := append([]string{"add-port", "br-int", host, "--", "set", "interface", host}, ids...)
	if _, err := vsctl(ctx, args...); err != nil {
		return nil, err
	}
	wait := fmt.Sprintf("--timeout=%d", int(installedLimit.Seconds()))
	if _, err := vsctl(ctx, wait, "wait-until", "interface", host, "external_ids:ovn-installed=true"); err != nil {
		return nil, fmt.Errorf("timed out waiting for OVS port binding (ovn-installed) for %s: %w", e.MAC, err)
	}
	if c.conf.ownDHCP() && !isVM(pod) {
		if e, err = c.lease(ctx, pod, w, e); err != nil {
			return nil, err
		}
	}
	return c.result(host, e)
}

// takeOver takes a logical port from interfaces of older sandboxes of the pod.
func takeOver(ctx context.Context, name string) error {
	older, err := vsctl(ctx, "--bare", "--columns=_uuid", "find", "interface", "external_ids:iface-id="+quoted(name))
	if err != nil {
		return err
	}
	for _, uuid := range strings.Fields(older) {
		if _, err := vsctl(ctx, "remove", "interface", uuid, "external_ids", "iface-id"); err != nil {
			return err
		}
	}
	return nil
}

// hostName is the host's end of the interface: as many digits of the sandbox's id
// as fit, less what tells interfaces of one sandbox apart.
func (c *cniCall) hostName(w wanted) string {
	if w.key == defaultKey {
		return c.container[:15]
	}
	suffix := "_" + c.ifName[len(c.ifName)-1:]
	return c.container[:15-len(suffix)] + suffix
}

// inPod opens netlink in the pod's namespace.
func (c *cniCall) inPod() (*netlink.Handle, netns.NsHandle, error) {
	if c.netns == "" {
		return nil, -1, errors.New("failed to get container namespace: path is empty")
	}
	ns, err := netns.GetFromPath(c.netns)
	if err != nil {
		return nil, -1, fmt.Errorf("failed to get container namespace %s: %w", c.netns, err)
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		ns.Close()
		return nil, -1, err
	}
	return h, ns, nil
}

// plug makes the veth pair and gives the pod's end all that the entry says: its
// addresses too, and its gateway as the default route.
func (c *cniCall) plug(ctx context.Context, host string, e podNetwork) error {
	h, ns, err := c.inPod()
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	mac, err := net.ParseMAC(e.MAC)
	if err != nil {
		return err
	}
	if _, err := h.LinkByName(c.ifName); err == nil {
		return fmt.Errorf("container veth name provided (%s) already exists: peer provided already exists", c.ifName)
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: host, MTU: 1400},
		PeerName:  c.ifName, PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(int(ns)),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the pair %s: %w", host, err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	link, err := h.LinkByName(c.ifName)
	if err != nil {
		return err
	}
	// The userspace datapath hands on what the kernel left to the device.
	if _, err := tool(ctx, "nsenter", "--net="+c.netns, "ethtool", "-K", c.ifName, "tx", "off"); err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	for _, text := range e.IPs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("failed to add IP addr %s to %s: %w", text, c.ifName, err)
		}
	}
	for _, text := range e.Gateways {
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(text)}); err != nil {
			return fmt.Errorf("failed to add gateway route to link '%s': %w", c.ifName, err)
		}
	}
	return nil
}

// result is what ADD says: host side first.
func (c *cniCall) result(host string, e podNetwork) ([]byte, error) {
	link, err := netlink.LinkByName(host)
	if err != nil {
		return nil, err
	}
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{
		{Name: host, Mac: link.Attrs().HardwareAddr.String()},
		{Name: c.ifName, Mac: e.MAC, Sandbox: c.netns},
	}}
	for i, text := range e.IPs {
		addr, err := types.ParseCIDR(text)
		if err != nil {
			return nil, err
		}
		ip := &current.IPConfig{Interface: current.Int(1), Address: *addr}
		if i < len(e.Gateways) {
			ip.Gateway = net.ParseIP(e.Gateways[i])
		}
		r.IPs = append(r.IPs, ip)
	}
	version := c.conf.CNIVersion
	if version == "" {
		version = "0.4.0"
	}
	out, err := r.GetAsVersion(version)
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// del unplugs the interface. One that is not in the namespace any longer, of which
// the real one does not know the suffix, costs the sandbox its first interface.
func (c *cniCall) del(ctx context.Context) error {
	if _, _, err := c.get(); err != nil {
		return err
	}
	if c.conf.ownDHCP() { // of virtual machines' pods too, which asked for nothing
		if out, err := c.dhcp(ctx, "DEL"); err != nil {
			c.log.Error("DHCP plugin DEL failed", "error", err, "said", string(out))
		}
	}
	h, ns, err := c.inPod()
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	host := c.container[:15]
	if link, err := h.LinkByName(c.ifName); err == nil {
		peer, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
		if err != nil {
			return fmt.Errorf("host side of %s: %w", c.ifName, err)
		}
		host = peer.Attrs().Name
	} else if !errors.As(err, &netlink.LinkNotFoundError{}) {
		return err
	}
	if _, err := vsctl(ctx, "--if-exists", "del-port", "br-int", host); err != nil {
		return err
	}
	link, err := netlink.LinkByName(host)
	if err != nil {
		return nil //nolint:nilerr // it has gone with the namespace
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", host, err)
	}
	return nil
}
