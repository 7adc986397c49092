package api

import "time"

// Bounds of ProbeRequest.Timeout.
const (
	DefaultProbe = 5 * time.Second
	MaxProbe     = time.Minute
)

// ProbeRequest asks which servers would give an interface an address. Nothing is
// leased by it: only DHCPDISCOVER is sent, as often as a client would.
type ProbeRequest struct {
	Netns  string `json:"netns"`
	IfName string `json:"ifName"`
	// Timeout is how long offers are collected, in nanoseconds; 0: DefaultProbe.
	Timeout time.Duration `json:"timeout,omitempty"`
	// ClientID is option 61: "mac" (so is empty), "none", or hexadecimal with the
	// type octet, with or without colons.
	ClientID string `json:"clientID,omitempty"`
	// Broadcast asks servers to answer by broadcast.
	Broadcast bool `json:"broadcast,omitempty"`
}

// ProbeReport is what came back.
type ProbeReport struct {
	Netns        string `json:"netns"`
	IfName       string `json:"ifName"`
	HardwareAddr string `json:"mac"`
	// Kind is the kernel's name of the device type: "veth", "macvlan".
	Kind     string `json:"kind,omitempty"`
	ClientID string `json:"clientID,omitempty"` // hexadecimal, as it was sent
	// Discovers is how many DHCPDISCOVER were sent, within Waited.
	Discovers int           `json:"discovers"`
	Waited    time.Duration `json:"waitedNanoseconds"`
	// Offers are in the order in which they came, one of each server, address
	// and relay.
	Offers []Offer `json:"offers"`
	// LeftAside says of the replies that were no offers what they were.
	LeftAside []string `json:"leftAside,omitempty"`
	// Heard is what arrived besides; nil where it was not counted.
	Heard *Heard `json:"heard,omitempty"`
	// Hint says where the question or its answer has stopped, as far as can be
	// seen from the interface; empty when there is an offer that can be used.
	Hint string `json:"hint,omitempty"`
}

// Heard is what arrives at an interface, from anybody.
type Heard struct {
	Frames int `json:"frames"`
	// OtherReplies are DHCP replies to other clients, as far as the network lets
	// them pass here.
	OtherReplies int `json:"otherReplies"`
}

// Offer is a DHCPOFFER. What the engine would not use of it is empty.
type Offer struct {
	Server string `json:"server,omitempty"`
	// From is the source of the datagram, Relay the field giaddr; empty: no relay.
	From  string `json:"from,omitempty"`
	Relay string `json:"relay,omitempty"`
	// After is the time since the DHCPDISCOVER that it answers, which is the
	// Discover-th of the probe.
	After    time.Duration `json:"afterNanoseconds"`
	Discover int           `json:"discover"`
	// Address has its mask where the offer has one: "10.77.0.50/24".
	Address string `json:"address,omitempty"`
	// LeaseSeconds, T1Seconds and T2Seconds are what the engine would use; 0 where
	// Infinite.
	LeaseSeconds int64    `json:"leaseSeconds,omitempty"`
	T1Seconds    int64    `json:"t1Seconds,omitempty"`
	T2Seconds    int64    `json:"t2Seconds,omitempty"`
	Infinite     bool     `json:"infinite,omitempty"`
	Routers      []string `json:"routers,omitempty"`
	// Routes are all that the server names, before any policy.
	Routes []Route  `json:"routes,omitempty"`
	DNS    DNS      `json:"dnsConfig,omitzero"`
	NTP    []string `json:"ntp,omitempty"`
	MTU    int      `json:"mtu,omitempty"`
	// Options are all options of the message, by code.
	Options []OfferedOption `json:"options"`
	// Remarks are what the engine would leave out of it.
	Remarks []string `json:"remarks,omitempty"`
	// Problem is why the engine would not take the offer; empty: it would.
	Problem string `json:"problem,omitempty"`
}

// OfferedOption is an option as it came, in hexadecimal.
type OfferedOption struct {
	Code  uint8  `json:"code"`
	Value string `json:"value"`
}
