package store

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// version is that of the file format. It goes up with every change, also with a
// new field: an engine that went back to an older release would lose the field
// with its next Put, and not know what it lost. Older versions from oldest on are
// read: what they lack is empty in them.
const (
	version = 3
	oldest  = 1
)

// errNewer says that a record is of a later release: not corrupt, and of use again
// when that release is back.
var errNewer = errors.New("record of a newer release")

// file is a record as it is on disk: a type of its own, so that a change of the
// engine's types cannot change the format by accident.
type file struct {
	Version    int        `json:"version"`
	Attachment attachment `json:"attachment"`
	// Effective is the dhcp object with what the cluster adds, where it adds
	// something.
	Effective json.RawMessage `json:"effectiveDHCP,omitempty"`
	Phase     string          `json:"phase"`
	BootID    string          `json:"bootID"`
	Workload  workload        `json:"workload"`
	OVN       bool            `json:"ovn,omitempty"`
	VFIO      bool            `json:"vfio,omitempty"`
	MAC       mac             `json:"mac"`
	ClientID  hexBytes        `json:"clientID"`
	Lease     lease           `json:"lease,omitzero"`
	Setup     setup           `json:"setup,omitzero"`
	Adopted   bool            `json:"adopted,omitempty"`
	ForPeople json.RawMessage `json:"forPeople,omitempty"` // a forPeople; never read back
}

type attachment struct {
	ContainerID string          `json:"containerID"`
	IfName      string          `json:"ifName"`
	Network     string          `json:"network"`
	Pod         pod             `json:"pod,omitzero"`
	NAD         string          `json:"nad,omitempty"`
	Wrapped     string          `json:"wrapped,omitempty"`
	DeviceID    string          `json:"deviceID,omitempty"`
	IPAM        bool            `json:"ipam,omitempty"`
	Netns       netns           `json:"netns"`
	DHCP        json.RawMessage `json:"dhcp,omitempty"`
}

type pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

type netns struct {
	Path string `json:"path"`
	// Cookie is text: it has 64 bits, and jq and the like keep 53 of a number.
	Cookie uint64 `json:"cookie,string"`
}

type lease struct {
	Address netip.Prefix `json:"address"`
	Server  netip.Addr   `json:"server"`
	Routers []netip.Addr `json:"routers,omitempty"`
	Routes  []route      `json:"routes,omitempty"`
	DNS     []netip.Addr `json:"dns,omitempty"`
	Domain  string       `json:"domain,omitempty"`
	Search  []string     `json:"search,omitempty"`
	NTP     []netip.Addr `json:"ntp,omitempty"`
	MTU     int          `json:"mtu,omitempty"`
	// StartBootNanos is CLOCK_BOOTTIME; the durations count from it.
	StartBootNanos *int64   `json:"startBootNanos,omitempty"`
	Lifetime       duration `json:"lifetime"`
	T1             duration `json:"t1"`
	T2             duration `json:"t2"`
}

type setup struct {
	Address  netip.Prefix `json:"address"`
	Routes   []route      `json:"routes,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
	PriorMTU int          `json:"priorMTU,omitempty"`
	Adopt    bool         `json:"adopt,omitempty"`
}

type route struct {
	Dst     netip.Prefix `json:"dst"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Metric  int          `json:"metric,omitempty"`
}

// forPeople is what the times in boot time were on the wall when the file was
// written. A wall clock that is set later makes them wrong and harms nothing.
type forPeople struct {
	Written time.Time `json:"written"`
	Start   time.Time `json:"leaseStart,omitzero"`
	T1      time.Time `json:"t1,omitzero"`
	T2      time.Time `json:"t2,omitzero"`
	Expiry  time.Time `json:"expiry,omitzero"`
}

// encode returns the file of r. wall translates a boot time to the wall's, now
// is the wall's.
func encode(r engine.Record, now time.Time, wall func(time.Time) time.Time) ([]byte, error) {
	l, err := fileLease(r.Lease)
	if err != nil {
		return nil, err
	}
	w := workload(r.Workload)
	if _, err := w.MarshalText(); err != nil {
		return nil, err
	}
	people, err := json.Marshal(peopleTimes(r.Lease, now, wall))
	if err != nil {
		return nil, err
	}
	f := file{
		Version: version,
		Attachment: attachment{
			ContainerID: r.ContainerID, IfName: r.IfName, Network: r.Network,
			Pod: pod(r.Pod), NAD: r.NAD, Wrapped: r.Wrapped, DeviceID: r.DeviceID,
			IPAM: r.IPAM, Netns: netns(r.Netns),
			DHCP: r.DHCP,
		},
		Effective: r.Effective,
		Phase:     string(r.Phase), BootID: r.BootID, Workload: w, OVN: r.OVN, VFIO: r.VFIO,
		MAC: mac(r.HardwareAddr), ClientID: r.ClientID,
		Lease:     l,
		Setup:     setup{Address: r.Setup.Addr, Routes: fileRoutes(r.Setup.Routes), MTU: r.Setup.MTU, PriorMTU: r.Setup.PriorMTU, Adopt: r.Setup.Adopt},
		Adopted:   r.Adopted,
		ForPeople: people,
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // the dhcp object comes back as it was written
	if err := e.Encode(f); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decode is the inverse of encode. The dhcp object comes back without white
// space. A file that it refuses is corrupt.
func decode(data []byte) (engine.Record, error) {
	var probe struct{ Version int }
	if err := json.Unmarshal(data, &probe); err != nil {
		return engine.Record{}, err
	}
	if probe.Version > version {
		return engine.Record{}, fmt.Errorf("version is %d, this release knows %d: %w", probe.Version, version, errNewer)
	}
	if probe.Version < oldest {
		return engine.Record{}, fmt.Errorf("version is %d, this release knows %d", probe.Version, version)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var f file
	if err := d.Decode(&f); err != nil {
		return engine.Record{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return engine.Record{}, errors.New("something follows the record")
	}
	if f.Attachment.ContainerID == "" || f.Attachment.IfName == "" || f.Phase == "" || f.BootID == "" {
		return engine.Record{}, errors.New("containerID, ifName, phase or bootID is missing")
	}
	dhcp, err := compact(f.Attachment.DHCP)
	if err != nil {
		return engine.Record{}, err
	}
	effective, err := compact(f.Effective)
	if err != nil {
		return engine.Record{}, err
	}
	return engine.Record{
		Attachment: engine.Attachment{
			AttachmentID: engine.AttachmentID{ContainerID: f.Attachment.ContainerID, IfName: f.Attachment.IfName},
			Network:      f.Attachment.Network,
			Pod:          engine.Pod(f.Attachment.Pod),
			NAD:          f.Attachment.NAD, Wrapped: f.Attachment.Wrapped, DeviceID: f.Attachment.DeviceID,
			IPAM: f.Attachment.IPAM, Netns: engine.Netns(f.Attachment.Netns),
			DHCP: dhcp,
		},
		Effective: effective,
		Phase:     engine.Phase(f.Phase), BootID: f.BootID, Workload: engine.Workload(f.Workload), OVN: f.OVN, VFIO: f.VFIO,
		HardwareAddr: net.HardwareAddr(f.MAC), ClientID: f.ClientID,
		Lease:   f.Lease.lease(),
		Setup:   engine.Setup{Addr: f.Setup.Address, Routes: setupRoutes(f.Setup.Routes), MTU: f.Setup.MTU, PriorMTU: f.Setup.PriorMTU, Adopt: f.Setup.Adopt},
		Adopted: f.Adopted,
	}, nil
}

// compact takes white space out of a text; an absent one stays absent.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	err := json.Compact(&b, raw)
	return b.Bytes(), err
}

func fileLease(l dhcp4.Lease) (lease, error) {
	out := lease{
		Address: l.Addr, Server: l.Server, Routers: l.Routers,
		DNS: l.DNS, Domain: l.Domain, Search: l.Search, NTP: l.NTP, MTU: l.MTU,
		Lifetime: duration(l.Lifetime), T1: duration(l.T1), T2: duration(l.T2),
	}
	for _, r := range l.Routes {
		out.Routes = append(out.Routes, route{Dst: r.Dst, Gateway: r.Gateway})
	}
	if !l.Start.IsZero() {
		n := l.Start.UnixNano()
		if !time.Unix(0, n).Equal(l.Start) {
			return lease{}, fmt.Errorf("the lease starts at %v, which is no boot time", l.Start)
		}
		out.StartBootNanos = &n
	}
	return out, nil
}

func (l lease) lease() dhcp4.Lease {
	out := dhcp4.Lease{
		Addr: l.Address, Server: l.Server, Routers: orNil(l.Routers),
		DNS: orNil(l.DNS), Domain: l.Domain, Search: orNil(l.Search), NTP: orNil(l.NTP), MTU: l.MTU,
		Lifetime: time.Duration(l.Lifetime), T1: time.Duration(l.T1), T2: time.Duration(l.T2),
	}
	for _, r := range l.Routes {
		out.Routes = append(out.Routes, dhcp4.Route{Dst: r.Dst, Gateway: r.Gateway})
	}
	if l.StartBootNanos != nil {
		out.Start = time.Unix(0, *l.StartBootNanos)
	}
	return out
}

// orNil makes an empty list of a file what it is in a lease that never was in one.
func orNil[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

func fileRoutes(in []engine.Route) (out []route) {
	for _, r := range in {
		out = append(out, route(r))
	}
	return out
}

func setupRoutes(in []route) (out []engine.Route) {
	for _, r := range in {
		out = append(out, engine.Route(r))
	}
	return out
}

func peopleTimes(l dhcp4.Lease, now time.Time, wall func(time.Time) time.Time) forPeople {
	on := func(boot time.Time) time.Time {
		if boot.IsZero() {
			return time.Time{} // never, or no lease
		}
		return wall(boot).UTC().Truncate(time.Second)
	}
	p := forPeople{Written: now.UTC().Truncate(time.Second)}
	if !l.Start.IsZero() {
		p.Start, p.T1, p.T2, p.Expiry = on(l.Start), on(l.RenewAt()), on(l.RebindAt()), on(l.ExpireAt())
	}
	return p
}

// duration is "1h0m0s", or "infinite".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) {
	if time.Duration(d) == dhcp4.Infinite {
		return []byte("infinite"), nil
	}
	return []byte(time.Duration(d).String()), nil
}

func (d *duration) UnmarshalText(b []byte) error {
	if string(b) == "infinite" {
		*d = duration(dhcp4.Infinite)
		return nil
	}
	v, err := time.ParseDuration(string(b))
	*d = duration(v)
	return err
}

// mac is "02:00:5e:00:53:01".
type mac net.HardwareAddr

func (m mac) MarshalText() ([]byte, error) { return []byte(net.HardwareAddr(m).String()), nil }

func (m *mac) UnmarshalText(b []byte) error {
	*m = nil
	if len(b) == 0 {
		return nil
	}
	v, err := hex.DecodeString(strings.ReplaceAll(string(b), ":", ""))
	if err != nil || net.HardwareAddr(v).String() != string(b) {
		return fmt.Errorf("mac %q is not of the form 02:00:5e:00:53:01", b)
	}
	*m = v
	return nil
}

// hexBytes is "010200".
type hexBytes []byte

func (h hexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

func (h *hexBytes) UnmarshalText(b []byte) error {
	*h = nil
	if len(b) == 0 {
		return nil
	}
	v, err := hex.DecodeString(string(b))
	*h = v
	return err
}

// workload is "container" or "vm".
type workload engine.Workload

func (w workload) MarshalText() ([]byte, error) {
	switch engine.Workload(w) {
	case engine.Container:
		return []byte("container"), nil
	case engine.VM:
		return []byte("vm"), nil
	}
	return nil, fmt.Errorf("workload %d has no name", w)
}

func (w *workload) UnmarshalText(b []byte) error {
	switch string(b) {
	case "container":
		*w = workload(engine.Container)
	case "vm":
		*w = workload(engine.VM)
	default:
		return fmt.Errorf("workload %q is not known", b)
	}
	return nil
}
