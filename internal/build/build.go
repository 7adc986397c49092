// Package build tells which build of dhcp-meta this program is.
package build

import "runtime/debug"

// version is set by the linker: -X github.com/dhcp-meta/dhcp-meta/internal/build.version=v1.2.3
var version string

// Version returns the version of the linker, otherwise that of the module,
// otherwise the commit; "unknown" when the program was built without any.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return pick(version, info)
}

// pick takes a nil info for a program that was built without module support.
func pick(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil {
		return "unknown"
	}
	// "(devel)" is what Go says where it does not know.
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if commit == "" {
		return "unknown"
	}
	return commit[:min(len(commit), 12)] + dirty
}
