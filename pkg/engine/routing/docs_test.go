package routing

import (
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// docs/configuration.md explains each reason, in the order of the rules.
func TestDocumentedReasons(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n### Routes of a lease\n")
	if !found {
		t.Fatal("docs/configuration.md has no section \"Routes of a lease\"")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []Reason
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, Reason(m[1]))
	}
	if diff := cmp.Diff(Reasons(), documented); diff != "" {
		t.Errorf("reasons (-known +documented):\n%s", diff)
	}
}

// The parser of a network, which is linked into the plugin and so knows nothing
// of this package, has the same idea of what can never be installed.
func TestNetworksAgree(t *testing.T) {
	parse := func(settings map[string]any) error {
		raw, err := json.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		_, err = network.Parse(raw)
		return err
	}
	type list = map[string][]netip.Prefix
	for bits, wrong := range map[int]bool{widest - 1: true, widest: false} {
		p := netip.PrefixFrom(netip.MustParseAddr("8.0.0.0"), bits).Masked()
		if err := parse(map[string]any{"defaultRoute": "always", "routes": list{"deny": {p}}}); (err != nil) != wrong {
			t.Errorf("denied %s beside a default route: got %v", p, err)
		}
	}
	for _, s := range special() {
		err := parse(map[string]any{"routes": list{"allow": {s.Prefix}}})
		if opened := s.Prefix == linkLocal; (err == nil) != opened {
			t.Errorf("allowed %s: got %v", s.Prefix, err)
		}
	}
}
