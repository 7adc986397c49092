package delegate

import (
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// Refusal is why an ADD with this configuration fails before anything is touched, as
// far as the configuration alone tells; nil: it does not. It is for whoever looks at
// networks before there is a pod, and has the code that the runtime would get.
//
// name is that under which the program would be called; behind says that another
// plugin stands before it in a list. nad is the NetworkAttachmentDefinition that the
// configuration names; empty: none.
func Refusal(name string, stdin []byte, behind bool) (nad string, err error) {
	c, err := parse(name, stdin)
	if refused := speaks(stdin); refused != nil { // comes first, and says nothing of the network
		return c.nad, refused
	}
	if err != nil {
		return c.nad, err
	}
	if behind {
		c.prevResult = []byte("{}") // the runtime has one by then
	}
	return c.nad, c.refusal(name, stdin)
}

// speaks is what package skel looks at before it calls a verb.
func speaks(stdin []byte) error {
	asked, err := new(version.ConfigDecoder).Decode(stdin)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if bad := new(version.Reconciler).Check(asked, Versions()); bad != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", bad.Details())
	}
	outer, err := decodeObject("configuration", stdin)
	if err != nil {
		return api.WithCode(api.CodeConfig, err)
	}
	if bad := utils.ValidateNetworkName(outer.text("name")); bad != nil {
		return bad
	}
	return nil
}

// refusal finds what must not be when an interface is to be made, and is no reason to
// keep a pod from ending: what the configuration says, and a plugin to stand behind.
func (c conf) refusal(name string, stdin []byte) error {
	if err := c.sound(name, stdin); err != nil {
		return err
	}
	if c.form == chained {
		return c.needPrevResult("ADD")
	}
	return nil
}
