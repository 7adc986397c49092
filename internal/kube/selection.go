package kube

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

// selection is one of the networks that a pod asks for.
type selection struct {
	// nad is "<namespace>/<name>"; a name without a namespace is of the pod's.
	nad    string
	ifName string
	// nth counts the selections of the same nad, from 0.
	nth int
	// ips and mac are what is asked for, as it was written; defaultRoute says that
	// default-route names a gateway.
	ips          []string
	mac          string
	defaultRoute bool
}

// selectionsIn reads the annotation k8s.v1.cni.cncf.io/networks of a pod of this
// namespace, in either of its forms. An interface without a name is called by
// Multus after its place in the list: net1, net2...
func selectionsIn(annotation, namespace string) ([]selection, error) {
	if strings.TrimSpace(annotation) == "" {
		return nil, nil
	}
	elements, err := elementsIn(annotation, namespace)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
	}
	var list []selection
	for i, e := range elements {
		if e.Name == "" {
			return nil, fmt.Errorf("annotation %s: element %d has no name", networksAnnotation, i)
		}
		s := selection{
			nad:          e.Namespace + "/" + e.Name,
			ifName:       e.InterfaceRequest,
			ips:          e.IPRequest,
			mac:          e.MacRequest,
			defaultRoute: slices.ContainsFunc(e.GatewayRequest, func(ip net.IP) bool { return ip.To4() != nil }),
		}
		if s.ifName == "" {
			s.ifName = fmt.Sprintf("net%d", i+1)
		}
		for _, earlier := range list {
			if earlier.nad == s.nad {
				s.nth++
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

// selected is the selection of an interface; nil when the pod asks for none of
// that name.
func selected(list []selection, ifName string) *selection {
	if i := slices.IndexFunc(list, func(s selection) bool { return s.ifName == ifName }); i >= 0 {
		return &list[i]
	}
	return nil
}
