package delegate

import (
	"os"
	"path/filepath"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func searchPath(cniPath string) []string { return aside.SearchPath(cniPath) }

// behind returns what of CNI_PATH comes behind the folder own: see aside.Behind.
func behind(own, cniPath string) ([]string, error) {
	dirs, err := aside.Behind(own, cniPath)
	return dirs, api.WithCode(api.CodeConfig, err)
}

// find tells where the delegate of c is.
func (p *Plugin) find(c conf, cniPath string) (string, error) {
	if c.form != interposed {
		return p.Exec.FindInPath(c.delegate.text("type"), searchPath(cniPath))
	}
	if path, err := p.Exec.FindInPath(p.Name, []string{aside.WrappedFolder(p.Dir)}); err == nil {
		return path, nil
	}
	dirs, err := behind(p.Dir, cniPath)
	if err == nil {
		var path string
		if path, err = p.Exec.FindInPath(p.Name, dirs); err == nil {
			return path, nil
		}
	}
	if path := filepath.Join(p.Dir, p.Name); isAnother(path) {
		return path, nil
	}
	return "", err
}

// isAnother tells whether a file is there that is not the program that runs: an
// uninstaller has put the plugin back from whose place we were started.
func isAnother(path string) bool {
	it, err := os.Stat(path)
	if err != nil || !it.Mode().IsRegular() {
		return false
	}
	self, err := os.Stat("/proc/self/exe")
	return err == nil && !os.SameFile(it, self)
}
