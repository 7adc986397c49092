package build

import (
	"runtime/debug"
	"testing"
)

func TestPick(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "false"}}
	dirty := []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, {Key: "vcs.revision", Value: "0123456789abcdef"}}
	for _, tt := range []struct {
		name, linked string
		info         *debug.BuildInfo
		want         string
	}{
		{"OK the linker first", "v1.2.3", &debug.BuildInfo{Main: debug.Module{Version: "v9"}}, "v1.2.3"},
		{"OK the module's", "", &debug.BuildInfo{Main: debug.Module{Version: "v1.0.0"}, Settings: commit}, "v1.0.0"},
		{"OK the commit", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: commit}, "0123456789ab"},
		{"OK a changed commit", "", &debug.BuildInfo{Settings: dirty}, "0123456789ab+dirty"},
		{"OK nothing known", "", &debug.BuildInfo{}, "unknown"},
		{"OK no module", "", nil, "unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := pick(tt.linked, tt.info); got != tt.want {
				t.Errorf("version is %q, want %q", got, tt.want)
			}
		})
	}
	if Version() == "" {
		t.Error("Version is empty")
	}
}
