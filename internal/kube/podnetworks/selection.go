package podnetworks

import (
	"encoding/json"
	"fmt"
	"strings"
)

// NetworksKey is the annotation in which a pod asks for its networks.
const NetworksKey = "k8s.v1.cni.cncf.io/networks"

// Index tells which of a pod's interfaces on one NetworkAttachmentDefinition an
// interface is, from 0, by the annotation in which the pod asks for its networks.
// False: it asks for no such interface there.
func Index(networks, podNamespace, nad, ifName string) (int, bool) {
	elements, err := selection(networks)
	if err != nil {
		return 0, false
	}
	index := 0
	for i, e := range elements {
		namespace := e.Namespace
		if namespace == "" {
			namespace = podNamespace
		}
		if namespace+"/"+e.Name != nad {
			continue
		}
		name := e.Interface
		if name == "" {
			name = fmt.Sprintf("net%d", i+1)
		}
		if name == ifName {
			return index, true
		}
		index++
	}
	return 0, false
}

// element is a network selection element, as far as it tells interfaces apart.
type element struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Interface string `json:"interface"`
}

// selection reads both ways to write the annotation: JSON, and
// "namespace/name@interface,...".
func selection(networks string) ([]element, error) {
	var list []element
	if strings.ContainsAny(networks, `[{"`) {
		err := json.Unmarshal([]byte(networks), &list)
		return list, err
	}
	for item := range strings.SplitSeq(networks, ",") {
		var e element
		name, ifName, _ := strings.Cut(strings.TrimSpace(item), "@")
		e.Interface = ifName
		if namespace, rest, found := strings.Cut(name, "/"); found {
			e.Namespace, name = namespace, rest
		}
		e.Name = name
		list = append(list, e)
	}
	return list, nil
}
