package kube

import (
	"encoding/json"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Describe tells of a definition whether it is one of ours, by annotation or by what
// its configuration says, and with which settings, as far as they can be understood. It
// is for whoever looks at definitions before there is a pod, as is Refusal.
func Describe(nad *nadv1.NetworkAttachmentDefinition) (ours bool, s network.Settings) {
	ours = annotated(nad)
	plugins, _ := pluginsOf(nad.Spec.Config) // Refusal has the problems
	for _, p := range plugins {
		ours = ours || p.dhcp != nil || p.Type == ourType
	}
	text := inlineOf(plugins)
	d, _ := define(nad, text)
	if hasKeys(d.settings) {
		text = d.settings
	}
	s, _ = network.Parse(text)
	return ours, s
}

// Refusal is why the engine refuses an ADD on a network for what the definition says
// that its configuration names, mostly its own; nil: it does not. What is wrong with its
// dhcp object the plugin says before. It has the code that the runtime would get.
func Refusal(on, named *nadv1.NetworkAttachmentDefinition) error {
	plugins, _ := pluginsOf(on.Spec.Config) // its own problems are not the other's
	_, err := define(named, inlineOf(plugins))
	return err
}

// inlineOf is the dhcp object of a configuration, the first that says something.
func inlineOf(plugins []pluginConf) (inline json.RawMessage) {
	for _, p := range plugins {
		if !hasKeys(inline) {
			inline = p.dhcp
		}
	}
	return inline
}

// Annotated tells whether a definition is one of those that the engine lists for
// plugins that find no engine.
func Annotated(nad *nadv1.NetworkAttachmentDefinition) bool { return annotated(nad) }
