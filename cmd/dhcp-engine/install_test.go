package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/internal/install"
)

// What doctor finds out about an installer is what the installer itself would do.
func TestDoctorReadsWhatInstallersAreTold(t *testing.T) {
	for _, tt := range []struct {
		name, args, environment string
		want                    install.Plan
		bad                     bool
	}{
		{"OK nothing", "", "", install.Plan{Mode: install.Plain}, false},
		{"OK all flags", "--bin-dir=/b --mode=swap --wrap=a --wrap b --watch", "", install.Plan{Mode: install.Swap, Wrap: []string{"a", "b"}}, false},
		{"OK one dash", "-mode search-path -wrap=a", "", install.Plan{Mode: install.SearchPath, Wrap: []string{"a"}}, false},
		{"OK a variable", "--wrap=a", "DHCP_ENGINE_MODE=swap", install.Plan{Mode: install.Swap, Wrap: []string{"a"}}, false},
		{"OK a flag over a variable", "--wrap=a --mode=swap", "DHCP_ENGINE_MODE=search-path", install.Plan{Mode: install.Swap, Wrap: []string{"a"}}, false},
		{"OK settings of the engine", "--wrap=a", "DHCP_ENGINE_LOG_LEVEL=debug", install.Plan{Mode: install.Plain, Wrap: []string{"a"}}, false},
		{"bad flag", "--everything --wrap=a", "", install.Plan{}, true},
		{"bad operand", "everything --wrap=a", "", install.Plan{}, true},
		{"bad help", "-h", "", install.Plan{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := examine(config{}).Installer(strings.Fields(tt.args), strings.Fields(tt.environment))
			if (err != nil) != tt.bad {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}
