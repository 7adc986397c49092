package ovnnb

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// What people are told of policies, where OVN-Kubernetes itself says success: that a
// NetworkQoS does nothing before (Q01), that destinations are told by ipBlock only
// (Q13, Q41), where the labels of a VM belong (Q33), and that an address in the
// annotation changes none of this on versions before (Q37).
func TestQ01Q13Q33Q37Q41PoliciesAreDocumented(t *testing.T) {
	prose := strings.Join(strings.Fields(page(t)), " ")
	for line, text := range map[string]string{
		"Q01": "| NetworkQoS, whatever it selects | **does nothing**, and says that it was applied |",
		"Q13": "name destinations by `ipBlock`",
		"Q33": "labels belong into the VirtualMachine's template (`spec.template.metadata.labels`). dhcp-meta never changes labels.",
		"Q37": `"moves the network to the IP path" is true with the new code only`,
	} {
		if !strings.Contains(prose, text) {
			t.Errorf("%s: the page lacks %q", line, text)
		}
	}
	for _, kind := range []string{"NetworkPolicy", "MultiNetworkPolicy, `ipBlock` peers", "MultiNetworkPolicy, `podSelector`", "NetworkQoS, "} {
		if !strings.Contains(prose, "| "+kind) {
			t.Errorf("no row says what becomes of %s", kind)
		}
	}

	kinds := map[string]int{}
	for _, block := range regexp.MustCompile("(?ms)^  ```yaml\n(.*?)^  ```$").FindAllStringSubmatch(page(t), -1) {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(block[1]), &object); err != nil {
			t.Fatalf("%v in\n%s", err, block[1])
		}
		kinds[object["kind"].(string)]++
		for _, peer := range peers(object) {
			if _, ok := peer["ipBlock"]; !ok || len(peer) != 1 {
				t.Errorf("%s: a peer that OVN-Kubernetes refuses, or ignores, on these networks: %v", object["kind"], peer)
			}
		}
	}
	if kinds["NetworkQoS"] != 1 || kinds["MultiNetworkPolicy"] != 1 { // Q41
		t.Errorf("examples on the page: %v", kinds)
	}
}

// peers are the elements of all lists called from or to.
func peers(value any) (all []map[string]any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			list, _ := inner.([]any)
			if !slices.Contains([]string{"from", "to"}, key) {
				all = append(all, peers(inner)...)
				continue
			}
			for _, e := range list {
				all = append(all, e.(map[string]any))
			}
		}
	case []any:
		for _, inner := range v {
			all = append(all, peers(inner)...)
		}
	}
	return all
}
