package kube

import (
	"errors"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Describe tells of a definition whether it is one of ours, by annotation or by what
// its configuration says, with which settings, and all that an ADD would refuse. It
// is for whoever looks at definitions before there is a pod.
func Describe(nad *nadv1.NetworkAttachmentDefinition) (ours bool, s network.Settings, err error) {
	ours = annotated(nad)
	var inline []byte
	plugins, _ := pluginsOf(nad.Spec.Config) // define has the problems
	for _, p := range plugins {
		ours = ours || p.dhcp != nil || p.Type == ourType
		if !hasKeys(inline) {
			inline = p.dhcp
		}
	}
	d, err := define(nad, inline)
	text := inline
	if hasKeys(d.settings) {
		text = d.settings
	}
	s, parsed := network.Parse(text)
	if hasKeys(inline) { // those of the annotation are in err
		err = errors.Join(err, parsed)
	}
	return ours, s, err
}

// Annotated tells whether a definition is one of those that the engine lists for
// plugins that find no engine.
func Annotated(nad *nadv1.NetworkAttachmentDefinition) bool { return annotated(nad) }
