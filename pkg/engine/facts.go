package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// briefing is what is known of an attachment before anything is done for it: what the
// caller, the cluster and the device say.
type briefing struct {
	// rec has what follows from facts: attachment, workload, effective settings.
	rec      Record
	settings network.Settings
	// hostname is what a VM's guest is called; empty: as its pod.
	hostname string
	// mac is the MAC that a borrowed device is to have; nil: what it has.
	mac net.HardwareAddr
}

// brief finds out what is to be done for a request. It changes nothing but that a
// device comes back which a crash has left borrowed.
func (e *Engine) brief(ctx context.Context, r api.Request) (briefing, error) {
	b := briefing{rec: Record{BootID: e.cfg.BootID, Attachment: Attachment{
		AttachmentID: r.AttachmentID, Network: r.Network, Pod: r.Pod, NAD: r.NAD, Wrapped: r.Wrapped, DeviceID: r.DeviceID,
		IPAM: r.IPAM, Netns: Netns{Path: r.Netns}, DHCP: r.DHCP}}}
	// What the caller itself says wrong is said first, and without the cluster.
	if _, err := network.Parse(r.DHCP); err != nil {
		return b, api.WithCode(api.CodeConfig, err)
	}
	var err error
	if b.rec.Attachment, err = e.owned(ctx, b.rec.Attachment); err != nil {
		return b, err
	}
	f, err := e.facts(ctx, b.rec.Attachment)
	if err != nil {
		return b, err
	}
	b.rec.Workload, b.rec.OVN, b.hostname = f.Workload, f.OVN, f.Hostname
	if r.IPAM {
		// Whose address the caller configures is kept, whatever runs behind it: KubeVirt
		// hands it to its guest and leaves the lease to whoever got it.
		b.rec.Workload = Container
	}
	if b.rec.NAD == "" {
		b.rec.NAD = f.NAD
	}
	b.rec.Effective = added(r.DHCP, f.DHCP)
	if b.rec.VFIO, err = e.onVFIO(ctx, r.DeviceID); err != nil {
		return b, err
	}
	if b.settings, err = settingsFor(b.rec); err != nil {
		return b, api.WithCode(api.CodeConfig, err)
	}
	if b.mac = f.HardwareAddr; r.HardwareAddr != "" {
		if b.mac, err = net.ParseMAC(r.HardwareAddr); err != nil {
			return b, api.WithCode(api.CodeConfig, fmt.Errorf("MAC in the wrapped plugin's result: %w", err))
		}
	}
	return b, api.WithCode(api.CodeConfig, b.servable())
}

// facts asks the cluster, where there is one and the caller names a pod.
func (e *Engine) facts(ctx context.Context, a Attachment) (Facts, error) {
	if e.cfg.Cluster == nil || a.Pod.Name == "" {
		return Facts{NAD: a.NAD, DHCP: a.DHCP}, nil
	}
	f, err := e.cfg.Cluster.Facts(ctx, a)
	if errors.Is(err, ErrNoPod) {
		err = api.WithCode(api.CodeTryAgain, fmt.Errorf("pod %s/%s with UID %s: %w: it was deleted, or has been replaced by one of the same name",
			a.Pod.Namespace, a.Pod.Name, orNone(a.Pod.UID), err))
	}
	return f, api.WithCode(api.CodeTryAgain, err)
}

// added is the dhcp object in effect where it is not the caller's own.
func added(own, effective json.RawMessage) json.RawMessage {
	switch {
	case sameJSON(own, effective):
		return nil
	case len(effective) == 0:
		return json.RawMessage("{}")
	}
	return effective
}

// effective is the dhcp object that counts for a record.
func (r Record) effective() json.RawMessage {
	if r.Effective != nil {
		return r.Effective
	}
	return r.DHCP
}

// settingsFor is what the dhcp object of a record means for its workload.
func settingsFor(rec Record) (network.Settings, error) {
	s, err := network.Parse(rec.effective())
	if err != nil {
		return s, err
	}
	if rec.Workload == VM {
		// The guest's own client is known to the server by its MAC, whatever it sends
		// besides: so the guest gets the address that was found out here.
		if !s.ClientIDSet {
			s.ClientID = network.ClientIDNone
		}
		if s.PortSecurity == network.PortSecurityAuto {
			s.PortSecurity = network.PortSecurityMAC
		}
	}
	if rec.OVN {
		// The port may be pinned to another address, or to none, until this lease is
		// published: only a broadcast comes through.
		s.Broadcast = true
	}
	if s.Publish == network.PublishAuto {
		s.Publish = network.PublishEventual
		if rec.OVN && !rec.IPAM { // otherwise OVN-Kubernetes waits for it, and makes it known
			s.Publish = network.PublishRequire
		}
	}
	return s, nil
}

// servable refuses what cannot be served, before anything is touched.
func (b briefing) servable() error {
	device := b.rec.DeviceID
	switch {
	case !b.rec.VFIO:
	case b.rec.Workload == Container && !b.settings.DiscoverVFIO:
		return fmt.Errorf("device %s of %s is on vfio-pci and the pod is no VM: there is no interface for an address; "+
			"with \"vfioContainers\": \"discover\" on the network the address is found out and reported", device, b.rec.IfName)
	case b.settings.DeriveMAC:
		return fmt.Errorf("device %s of %s is on vfio-pci and has the MAC that its plugin gave it: \"mac\": \"derive\" cannot be had", device, b.rec.IfName)
	}
	return nil
}

// pciAddress is what a device is called that can be on vfio-pci. Device plugins
// give out other things by other names, auxiliary devices for instance.
var pciAddress = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// onVFIO tells whether a device is on vfio-pci; before that, one that a crash has
// left elsewhere comes back.
func (e *Engine) onVFIO(ctx context.Context, device string) (bool, error) {
	if e.cfg.Devices == nil || !pciAddress.MatchString(device) {
		return false, nil
	}
	if err := e.cfg.Devices.HealDevice(ctx, device); err != nil {
		return false, api.WithCode(api.CodeTryAgain, fmt.Errorf("device %s was left borrowed and does not go back to vfio-pci: %w", device, err))
	}
	d, err := e.cfg.Devices.Inspect(ctx, device)
	if err != nil {
		return false, api.WithCode(api.CodeConfig, fmt.Errorf("look at device %s: %w", device, err))
	}
	return d.VFIO, nil
}

// target is what the request is about, for the kernel: the interface, or where its
// device is on vfio-pci the namespace alone.
func (b briefing) target() Target {
	t := b.rec.Target()
	if b.rec.VFIO {
		t.IfName = ""
	}
	return t
}

// stripped are those of the wrapped plugin's addresses that are not on the
// interface any longer: all IPv4 of a VM, whose address is its guest's alone; of a
// container on OVN-Kubernetes those that it took from the pod's annotation, where
// an earlier lease may have left them.
func (b briefing) stripped(r api.Request) []string {
	if b.rec.VFIO || b.rec.Workload == Container && !b.rec.OVN {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.Addresses), func(text string) bool { return !isIPv4(text) })
}
