package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/cnidhcp"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// dropInConfig is how the engine takes the place of the reference dhcp daemon; an
// empty socket: not at all.
type dropInConfig struct {
	socket string
	// hostPrefix is where the host's root is mounted; empty: it is ours.
	hostPrefix string
	timeout    time.Duration
	// broadcast asks servers to answer by broadcast where a network says nothing.
	broadcast bool
	// networks is a file, empty: none, with dhcp objects by the names of networks.
	networks string
}

// rawDropIn is what declareDropIn declares, as it was written.
type rawDropIn struct {
	socket, hostPrefix, timeout, broadcast, networks *string
}

func declareDropIn(in *input) rawDropIn {
	return rawDropIn{
		socket: in.text("dhcp-socket", "off", "`path` of the unix socket for the IPAM plugin dhcp of the CNI project, or off"),
		hostPrefix: in.text("host-prefix", "", "`folder` at which the host's root is mounted here, put before the dhcp socket "+
			"and the namespaces that its callers name"),
		timeout:   in.text("dhcp-timeout", "110s", "`duration` that a call on the dhcp socket may take, 1s to 1h"),
		broadcast: in.boolean("dhcp-broadcast", "false", "ask servers to answer by broadcast for callers on the dhcp socket"),
		networks:  in.text("dhcp-networks", "", "`file` with dhcp objects for callers on the dhcp socket, by the name of their network"),
	}
}

// The range of --dhcp-timeout.
const (
	minDropInTimeout = time.Second
	maxDropInTimeout = time.Hour
)

// dropIn checks what declareDropIn declared.
func (in *input) dropIn(r rawDropIn) dropInConfig {
	c := dropInConfig{hostPrefix: strings.TrimRight(*r.hostPrefix, "/"), networks: *r.networks}
	var err error
	if c.broadcast, err = strconv.ParseBool(*r.broadcast); err != nil {
		in.check("dhcp-broadcast", fmt.Errorf("%q is neither true nor false", *r.broadcast))
	}
	if c.timeout, err = time.ParseDuration(*r.timeout); err != nil || c.timeout < minDropInTimeout || c.timeout > maxDropInTimeout {
		in.check("dhcp-timeout", fmt.Errorf("%q is no duration from %s to %s", *r.timeout, minDropInTimeout, maxDropInTimeout))
	}
	if c.hostPrefix != "" {
		in.check("host-prefix", absolute(c.hostPrefix))
	}
	if c.networks != "" {
		in.check("dhcp-networks", absolute(c.networks))
	}
	if *r.socket == "off" {
		return dropInConfig{hostPrefix: c.hostPrefix}
	}
	in.check("dhcp-socket", absolute(*r.socket))
	c.socket = c.hostPrefix + filepath.Clean(*r.socket)
	if len(c.socket) > maxSocket {
		in.check("dhcp-socket", fmt.Errorf("%q has %d bytes, a socket's path at most %d", c.socket, len(c.socket), maxSocket))
	}
	return c
}

// roots are the folders of namespaces, those of the host too where it is elsewhere.
func (c dropInConfig) roots(own []string) []string {
	all := slices.Clone(own)
	if c.hostPrefix != "" {
		for _, root := range own {
			all = append(all, c.hostPrefix+root)
		}
	}
	return all
}

// readNetworks reads the file of --dhcp-networks, and adds what flags say of all
// networks.
func (c dropInConfig) readNetworks() (cnidhcp.Networks, error) {
	networks := make(cnidhcp.Networks)
	if c.networks != "" {
		raw, err := os.ReadFile(c.networks)
		if err != nil {
			return nil, fmt.Errorf("--dhcp-networks: %w", err)
		}
		if err := json.Unmarshal(raw, &networks); err != nil {
			return nil, fmt.Errorf("--dhcp-networks: %s: is no object of dhcp objects: %w", c.networks, err)
		}
	}
	var problems []error
	for name, keys := range networks {
		object, err := json.Marshal(keys)
		if err == nil {
			_, err = network.Parse(object)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("--dhcp-networks: %s: network %q: %w", c.networks, name, err))
		}
	}
	if c.broadcast {
		if networks[cnidhcp.AllNetworks] == nil {
			networks[cnidhcp.AllNetworks] = make(map[string]json.RawMessage)
		}
		for _, keys := range networks {
			if _, said := keys["broadcast"]; !said && keys != nil {
				keys["broadcast"] = json.RawMessage("true")
			}
		}
	}
	return networks, errors.Join(problems...)
}
