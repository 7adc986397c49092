package delegate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// What is special about the plugin of OVN-Kubernetes, seen on a live one of August
// 2026; see docs/ovn-kubernetes.md.

// minSandboxID is how long a sandbox's id must be: its server takes the first 15
// characters of it, and crashes when there are fewer.
const minSandboxID = 15

// podIsGone is what its DEL says once the pod's object is gone. It will never say
// anything else then.
const podIsGone = "failed to find NAD key"

// addable tells whether the plugin can take the attachment at all.
func (c *call) addable() error {
	if c.wrapsOVN() && len(c.id.ContainerID) < minSandboxID {
		return types.NewError(api.CodeEnv,
			fmt.Sprintf("CNI_CONTAINERID %q: OVN-Kubernetes needs %d characters or more", c.id.ContainerID, minSandboxID), "")
	}
	return nil
}

// identify notes for the DEL where the interface is about to be made.
func (c *call) identify(e *entry) error {
	if !c.wrapsOVN() {
		return nil
	}
	e.VFIO = c.onVFIO()
	s, err := c.Look(c.netns, c.id.IfName)
	e.Cookie = s.cookie
	return err
}

// onVFIO tells whether the device of the attachment is bound to vfio-pci, in the way
// that OVN-Kubernetes finds it out.
func (c *call) onVFIO() bool {
	if c.device == "" {
		return false
	}
	driver, err := os.Readlink(filepath.Join(c.SysFS, "bus/pci/devices", c.device, "driver"))
	return err == nil && filepath.Base(driver) == "vfio-pci"
}

// errSpent says that the DEL of a wrapped plugin must not run.
var errSpent = errors.New("the wrapped plugin's DEL is left out")

// spent tells whether the DEL of OVN-Kubernetes would do harm: when it does not find
// the interface it takes the pod's first one for it, and deletes that. An entry of a
// device on vfio-pci, which is in no namespace, is good for one DEL, whatever comes
// of it.
func (c *call) spent(wrapped string, e entry) error {
	switch {
	case wrapped != ovnPlugin:
		return nil
	case e.VFIO && e.Tried:
		return fmt.Errorf("%w: it has run for this device", errSpent)
	case e.VFIO:
		return nil
	case c.netns == "":
		return fmt.Errorf("%w: the network namespace is gone", errSpent)
	}
	s, err := c.Look(c.netns, c.id.IfName)
	switch {
	case err != nil:
		return err
	case s.cookie == 0:
		return fmt.Errorf("%w: network namespace %s is gone", errSpent, c.netns)
	case e.Cookie != 0 && e.Cookie != s.cookie:
		return fmt.Errorf("%w: another network namespace stands at %s now", errSpent, c.netns)
	case !s.there:
		return fmt.Errorf("%w: interface %s is gone", errSpent, c.id.IfName)
	}
	return nil
}

// hopeless tells whether a failure of the wrapped plugin's DEL will never end: the
// runtime would repeat it for as long as the node runs, and the sandbox stay. What
// the plugin leaves goes with the namespace, or when OVN-Kubernetes looks for ports
// of pods that are gone.
func hopeless(wrapped string, err error) bool {
	return err != nil && wrapped == ovnPlugin && strings.Contains(err.Error(), podIsGone)
}
