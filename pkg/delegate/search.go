package delegate

import (
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func searchPath(cniPath string) []string { return aside.SearchPath(cniPath) }

// behind returns what of CNI_PATH comes behind the folder own: see aside.Behind.
func behind(own, cniPath string) ([]string, error) {
	dirs, err := aside.Behind(own, cniPath)
	return dirs, api.WithCode(api.CodeConfig, err)
}
