package delegate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// searchPath splits CNI_PATH. An empty element, which elsewhere means the
// working folder, is left out: nobody means to run plugins from there.
func searchPath(cniPath string) []string {
	return slices.DeleteFunc(filepath.SplitList(cniPath), func(dir string) bool { return dir == "" })
}

// behind returns what of CNI_PATH comes behind the folder own: where the plugin
// is to be found whose name we were started under. "Any copy but ourselves"
// would not do, since two programs that stand before a third in this way would
// call each other for ever. If own is there more than once, the last counts;
// Multus puts its binDir in front of a CNI_PATH that often has it already.
func behind(own, cniPath string) ([]string, error) {
	dirs := searchPath(cniPath)
	self, err := os.Stat(own)
	if err != nil {
		return nil, api.WithCode(api.CodeConfig, fmt.Errorf("look up own folder: %w", err))
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if fi, err := os.Stat(dirs[i]); err == nil && os.SameFile(self, fi) {
			return dirs[i+1:], nil
		}
	}
	return nil, api.WithCode(api.CodeConfig, fmt.Errorf("own folder %s is not in CNI_PATH %q: which plugin stands behind it?", own, cniPath))
}

// ownFolder is the folder that a program was started from, as its caller found
// it: not resolved, since an installed plugin may be a link to a program of
// another name.
func ownFolder(argv0 string) (string, error) {
	if filepath.Base(argv0) == argv0 { // found by a shell in PATH
		exe, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find own folder: %w", err)
		}
		argv0 = exe
	}
	dir, err := filepath.Abs(filepath.Dir(argv0))
	if err != nil {
		return "", fmt.Errorf("find own folder: %w", err)
	}
	return dir, nil
}
