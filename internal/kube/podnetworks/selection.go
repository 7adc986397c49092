package podnetworks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadutils "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
)

// NetworksKey is the annotation in which a pod asks for its networks.
const NetworksKey = nadv1.NetworkAttachmentAnnot

// Selection is one of the networks that a pod asks for.
type Selection struct {
	// NAD is "<namespace>/<name>"; a name without a namespace is of the pod's.
	NAD    string
	IfName string
	// Nth counts the selections of the same NAD, from 0.
	Nth int
	// IPs and MAC are what is asked for, as it was written; DefaultRoute says that
	// default-route names a gateway.
	IPs          []string
	MAC          string
	DefaultRoute bool
}

// Selections reads the annotation NetworksKey of a pod of this namespace, in either
// of its forms. An interface without a name is called by Multus after its place in
// the list: net1, net2...
func Selections(annotation, namespace string) ([]Selection, error) {
	if strings.TrimSpace(annotation) == "" {
		return nil, nil
	}
	elements, err := elementsIn(annotation, namespace)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", NetworksKey, err)
	}
	var list []Selection
	for i, e := range elements {
		if e.Name == "" {
			return nil, fmt.Errorf("annotation %s: element %d has no name", NetworksKey, i)
		}
		s := Selection{
			NAD:          e.Namespace + "/" + e.Name,
			IfName:       e.InterfaceRequest,
			IPs:          e.IPRequest,
			MAC:          e.MacRequest,
			DefaultRoute: slices.ContainsFunc(e.GatewayRequest, func(ip net.IP) bool { return ip.To4() != nil }),
		}
		if s.IfName == "" {
			s.IfName = fmt.Sprintf("net%d", i+1)
		}
		for _, earlier := range list {
			if earlier.NAD == s.NAD {
				s.Nth++
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// elementsIn is the client library's parser, kept from what it cannot take: it
// would go down with a null in the list.
func elementsIn(annotation, namespace string) ([]*nadv1.NetworkSelectionElement, error) {
	if strings.ContainsAny(annotation, `[{"`) {
		var elements []*nadv1.NetworkSelectionElement
		if err := json.Unmarshal([]byte(annotation), &elements); err != nil {
			return nil, err
		}
		if slices.Contains(elements, nil) {
			return nil, errors.New("null is no network")
		}
	}
	return nadutils.ParseNetworkAnnotation(annotation, namespace)
}

// Index tells which of a pod's interfaces on one NetworkAttachmentDefinition an
// interface is, from 0. False: the pod asks for no such interface there, or in a
// way that nobody can read.
func Index(annotation, namespace, nad, ifName string) (int, bool) {
	list, err := Selections(annotation, namespace)
	if err != nil {
		return 0, false
	}
	i := slices.IndexFunc(list, func(s Selection) bool { return s.NAD == nad && s.IfName == ifName })
	if i < 0 {
		return 0, false
	}
	return list[i].Nth, true
}
