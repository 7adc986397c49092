package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov"
)

// kubernetesConfig is how the engine reaches the Kubernetes API; the zero value: not at
// all.
type kubernetesConfig struct {
	on bool
	// kubeconfig is a file; empty: what a pod finds.
	kubeconfig string
	node       string
	// leaseObjects says that leases are shown as objects.
	leaseObjects bool
}

// northboundConfig is how the engine reaches OVN's north database; an empty address: not
// at all.
type northboundConfig struct {
	// address is "auto", or what ovn-nbctl takes with --db: addresses separated by
	// commas.
	address       string
	ca, cert, key string // files, for ssl:
}

// vfioConfig is what of virtual functions may be borrowed, and for how long.
type vfioConfig struct {
	window time.Duration
	policy sriov.Policy
}

// The range of --vfio-window. The way back alone takes a second on slow hardware,
// and a runtime does not wait longer than two minutes.
const (
	minWindow = 5 * time.Second
	maxWindow = time.Minute
)

// rawCluster is what declareCluster declares, as it was written.
type rawCluster struct {
	noKubernetes, kubeconfig, node *string
	leaseObjects                   *string
	nb, nbCA, nbCert, nbKey        *string
	window, allow, deny            *string
}

func declareCluster(in *input) rawCluster {
	return rawCluster{
		noKubernetes: in.boolean("no-kubernetes", "false", "do without the Kubernetes API: every workload is a container, and nothing is written anywhere but on its interface"),
		kubeconfig:   in.text("kubeconfig", "", "`file` that tells how to reach the Kubernetes API; without one what a pod finds"),
		node:         in.text("node-name", "", "`name` of this node in Kubernetes; needed unless --no-kubernetes is given"),
		leaseObjects: in.boolean("lease-objects", "true", "show the leases of this node as DHCPLease objects, where the cluster has the kind"),
		nb: in.text("ovn-nb", "auto", "`address` of OVN's north database (unix:, tcp: or ssl:, several separated by commas), "+
			"auto for the sockets of OVN-Kubernetes on this node, or off"),
		nbCA:   in.text("ovn-nb-ca", "", "`file` with the certificates that ssl: trusts"),
		nbCert: in.text("ovn-nb-cert", "", "`file` with our certificate for ssl:"),
		nbKey:  in.text("ovn-nb-key", "", "`file` with its private key"),
		window: in.text("vfio-window", "20s", "`duration` for which a virtual function may be away from vfio-pci, 5s to 1m"),
		allow:  in.text("vfio-allow", "all", "`devices` that may be borrowed, vendor:device in hexadecimal such as 8086:154c, separated by commas"),
		deny:   in.text("vfio-deny", "none", "`devices` that may not be borrowed, in the same form"),
	}
}

// cluster checks what declareCluster declared.
func (in *input) cluster(r rawCluster) (k kubernetesConfig, nb northboundConfig, v vfioConfig) {
	without, err := strconv.ParseBool(*r.noKubernetes)
	if err != nil {
		in.check("no-kubernetes", fmt.Errorf("%q is neither true nor false", *r.noKubernetes))
	}
	objects, wrong := strconv.ParseBool(*r.leaseObjects)
	if wrong != nil {
		in.check("lease-objects", fmt.Errorf("%q is neither true nor false", *r.leaseObjects))
	}
	k = kubernetesConfig{on: !without, kubeconfig: *r.kubeconfig, node: *r.node, leaseObjects: objects && !without}
	switch {
	case without && k.kubeconfig != "":
		in.check("kubeconfig", errors.New("has no use with --no-kubernetes"))
	case err == nil && k.on && k.node == "":
		in.problems = append(in.problems, errors.New("--node-name: is missing: which pods are this node's? (or say --no-kubernetes)"))
	}
	if k.kubeconfig != "" {
		in.check("kubeconfig", absolute(k.kubeconfig))
	}
	if nb = in.northbound(r); without && nb.address != "" {
		// Which port is a pod's is told by the pod's UID and network definition.
		if nb.address != "auto" {
			in.check("ovn-nb", errors.New("has no use with --no-kubernetes"))
		}
		nb = northboundConfig{}
	}
	return k, nb, in.vfio(r)
}

func (in *input) northbound(r rawCluster) northboundConfig {
	nb := northboundConfig{address: *r.nb, ca: *r.nbCA, cert: *r.nbCert, key: *r.nbKey}
	files := map[string]string{"ovn-nb-ca": nb.ca, "ovn-nb-cert": nb.cert, "ovn-nb-key": nb.key}
	for name, file := range files {
		if file != "" {
			in.check(name, absolute(file))
		}
	}
	switch nb.address {
	case "off":
		nb.address = ""
		return nb
	case "auto":
		return nb
	}
	ssl := false
	for address := range strings.SplitSeq(nb.address, ",") {
		ssl = ssl || strings.HasPrefix(address, "ssl:")
		in.check("ovn-nb", databaseAddress(address))
	}
	if ssl && (nb.ca == "" || nb.cert == "" || nb.key == "") {
		in.check("ovn-nb", errors.New("ssl: needs --ovn-nb-ca, --ovn-nb-cert and --ovn-nb-key"))
	}
	return nb
}

// databaseAddress checks one address as OVN's tools take it (ovsdb(7), "Connection
// Methods").
func databaseAddress(address string) error {
	method, rest, _ := strings.Cut(address, ":")
	switch method {
	case "unix":
		if !filepath.IsAbs(rest) {
			return fmt.Errorf("%q: unix: needs an absolute path", address)
		}
		return nil
	case "tcp", "ssl":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return fmt.Errorf("%q: %s: needs host:port", address, method)
		}
		return nil
	}
	return fmt.Errorf("%q is none of auto, off, unix:PATH, tcp:HOST:PORT, ssl:HOST:PORT", address)
}

func (in *input) vfio(r rawCluster) vfioConfig {
	window, err := time.ParseDuration(*r.window)
	if err != nil || window < minWindow || window > maxWindow {
		in.check("vfio-window", fmt.Errorf("%q is no duration from %s to %s", *r.window, minWindow, maxWindow))
	}
	return vfioConfig{window, sriov.Policy{
		Allow: in.devices("vfio-allow", *r.allow, "all"),
		Deny:  in.devices("vfio-deny", *r.deny, "none"),
	}}
}

// devices checks a list of vendor:device; word stands for no list.
func (in *input) devices(name, text, word string) []sriov.ID {
	if text == word {
		return nil
	}
	var ids []sriov.ID
	for part := range strings.SplitSeq(text, ",") {
		id, err := sriov.ParseID(part)
		switch {
		case err != nil:
			in.check(name, err)
		case !slices.Contains(ids, id):
			ids = append(ids, id)
		}
	}
	return ids
}
