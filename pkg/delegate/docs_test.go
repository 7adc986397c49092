package delegate

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// Every JSON block of docs/configuration.md is taken as it stands: a network by
// the plugin, a lone dhcp object by its parser. The forms come in the order of
// their headings.
func TestDocumentedNetworks(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var forms []form
	for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(doc, -1) {
		block := mustObject(t, string(m[1]))
		switch {
		case block.has("type"):
			forms = append(forms, formOf(t, m[1], block))
		case block.has("plugins"): // a list, as a runtime reads it
			forms = append(forms, formInList(t, block))
		case block.has("dhcp"):
			if _, err := network.Parse(block["dhcp"]); err != nil {
				t.Errorf("%v in\n%s", err, m[1])
			}
		default:
			t.Errorf("neither a network nor a dhcp object:\n%s", m[1])
		}
	}
	if diff := cmp.Diff([]form{wrapping, wrapping, chained, bothKeys, interposed, interposed}, forms); diff != "" {
		t.Errorf("forms (-want +got):\n%s", diff)
	}
}

// formOf parses a network, in the program that Multus would find for it.
func formOf(t *testing.T, raw []byte, conf object) form {
	t.Helper()
	c, err := parse(conf.text("type"), raw)
	if err != nil {
		t.Errorf("%v in\n%s", err, raw)
	}
	return c.form
}

// formInList parses our entry of a list.
func formInList(t *testing.T, list object) form {
	t.Helper()
	var entries []json.RawMessage
	if err := json.Unmarshal(list["plugins"], &entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if o := mustObject(t, string(e)); o.text("type") == pluginName {
			return formOf(t, e, o)
		}
	}
	t.Fatal("no entry of the list is ours")
	return ""
}
