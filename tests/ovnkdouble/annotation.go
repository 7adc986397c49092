package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podNetworks is the key of the annotation.
const podNetworks = "k8s.ovn.org/pod-networks"

// podNetwork is an entry. Keys that it lacks are lost whenever any entry of the pod
// is written.
type podNetwork struct {
	IPs      []string   `json:"ip_addresses"`
	MAC      string     `json:"mac_address"`
	Gateways []string   `json:"gateway_ips,omitempty"`
	Routes   []podRoute `json:"routes,omitempty"`

	IP      string `json:"ip_address,omitempty"`
	Gateway string `json:"gateway_ip,omitempty"`

	TunnelID int    `json:"tunnel_id,omitempty"`
	Role     string `json:"role,omitempty"`
	// Mode is known only where the network has the mode: elsewhere this is an older
	// OVN-Kubernetes, which loses it.
	Mode string `json:"ipam_mode,omitempty"`
}

type podRoute struct {
	Dest    string `json:"dest"`
	NextHop string `json:"nextHop"`
}

// readEntries decodes the annotation of a pod.
func readEntries(pod *corev1.Pod) (map[string]podNetwork, error) {
	entries := map[string]podNetwork{}
	text, ok := pod.Annotations[podNetworks]
	if !ok {
		return entries, nil
	}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, fmt.Errorf("failed to unmarshal annotation %s of %s/%s: %w", podNetworks, pod.Namespace, pod.Name, err)
	}
	return entries, nil
}

// patchOp is an operation of a JSON patch (RFC 6902).
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// writeEntry adds an entry to a pod's annotation with a test on the whole old value,
// and tries again when somebody else was faster.
func (c *controller) writeEntry(ctx context.Context, pod *corev1.Pod, nad string, e podNetwork) error {
	const path = "/metadata/annotations/k8s.ovn.org~1pod-networks"
	for {
		entries, err := readEntries(pod)
		if err != nil {
			return err
		}
		entries[nad] = e
		c.forgetModes(entries)
		text, err := json.Marshal(entries)
		if err != nil {
			return err
		}
		var ops []patchOp
		switch old, ok := pod.Annotations[podNetworks]; {
		case pod.Annotations == nil:
			ops = []patchOp{{"add", "/metadata/annotations", map[string]string{podNetworks: string(text)}}}
		case ok:
			ops = []patchOp{{"test", path, old}, {"replace", path, string(text)}}
		default:
			ops = []patchOp{{"add", path, string(text)}}
		}
		patch, err := json.Marshal(ops)
		if err != nil {
			return err
		}
		_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "status")
		if err == nil || !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			return err
		}
		if pod, err = c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
}

// forgetModes drops the mode from entries of networks that do not have it.
func (c *controller) forgetModes(entries map[string]podNetwork) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range entries {
		parts := strings.SplitN(key, "/", 3) // namespace, name, and perhaps an index
		if len(parts) < 2 || !c.networks[parts[0]+"/"+parts[1]].ownDHCP() {
			e.Mode = ""
			entries[key] = e
		}
	}
}

// newEntry is what a pod gets on a network.
func (c *controller) newEntry(w wanted) podNetwork {
	if w.key != defaultKey {
		e := podNetwork{MAC: w.mac, Role: "secondary"}
		if e.MAC == "" {
			e.MAC = randomMAC().String()
		}
		for _, ip := range w.ips { // "ips" of the selection, on a network without IPAM
			if !strings.Contains(ip, "/") {
				ip += "/24"
			}
			e.IPs = append(e.IPs, ip)
		}
		if len(e.IPs) == 1 {
			e.IP = e.IPs[0] // the older key is written beside the list
		}
		return e
	}
	c.mu.Lock()
	ip := c.next
	c.next = ip.Next()
	c.mu.Unlock()
	gateway := c.subnet.Addr().Next().String()
	a := ip.As4()
	prefix := netip.PrefixFrom(ip, c.subnet.Bits()).String()
	return podNetwork{
		IPs: []string{prefix}, IP: prefix, Gateways: []string{gateway}, Gateway: gateway,
		MAC:    net.HardwareAddr{0x0a, 0x58, a[0], a[1], a[2], a[3]}.String(),
		Routes: []podRoute{{Dest: "10.96.0.0/12", NextHop: gateway}},
		Role:   "primary",
	}
}

func randomMAC() net.HardwareAddr {
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 0}
	for i := 1; i < len(mac); i++ {
		mac[i] = byte(rand.N(256))
	}
	return mac
}

// took keeps the address of an entry of the default network from being given again.
func (c *controller) took(e podNetwork) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range e.IPs {
		if p, err := netip.ParsePrefix(text); err == nil && c.subnet.Contains(p.Addr()) && !p.Addr().Less(c.next) {
			c.next = p.Addr().Next()
		}
	}
}
