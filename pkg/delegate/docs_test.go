package delegate

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
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
	if len(forms) == 0 {
		t.Fatal("no network is documented")
	}
	if diff := cmp.Diff([]form{wrapping, wrapping, chained, bothKeys, interposed, interposed}, forms); diff != "" {
		t.Errorf("forms (-want +got):\n%s", diff)
	}
}

// Every network of the documents that belongs into a NetworkAttachmentDefinition names
// it: without the key OVN-Kubernetes refuses the network, and we do not find its
// annotations.
func TestK28DocumentedNetworksNameThemselves(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		doc, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(doc, -1) {
			if !bytes.Contains(m[1], []byte(`"type": "dhcp-meta"`)) && !bytes.Contains(m[1], []byte(ovnPlugin)) {
				continue
			}
			seen++
			name := regexp.MustCompile(`"netAttachDefName": "([^"]*)"`).FindSubmatch(m[1])
			if name == nil || !aside.IsNAD(string(name[1])) {
				t.Errorf("%s: no netAttachDefName in\n%s", page, m[1])
			}
		}
	}
	if seen < 6 {
		t.Errorf("found %d networks only", seen)
	}
}

// The networks of all other pages are taken as well, those within
// NetworkAttachmentDefinitions too.
func TestDocumentedNetworksOfAllPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		doc, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range documentedNetworks(t, doc) {
			conf := mustObject(t, text)
			switch {
			case conf.text("type") == pluginName:
				formOf(t, []byte(text), conf)
				seen++
			case conf.has("plugins"):
				formInList(t, conf)
				seen++
			}
		}
	}
	if seen < 8 {
		t.Errorf("found %d networks only", seen)
	}
}

// documentedNetworks are JSON blocks that may be networks, and the configurations in
// YAML blocks.
func documentedNetworks(t *testing.T, doc []byte) (list []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^ *```(json|yaml)\n(.*?)^ *```$").FindAllSubmatch(doc, -1) {
		if string(m[1]) == "json" {
			list = append(list, string(m[2]))
			continue
		}
		var nad struct {
			Kind string
			Spec struct{ Config string }
		}
		if err := yaml.Unmarshal(m[2], &nad); err == nil && nad.Kind == "NetworkAttachmentDefinition" {
			list = append(list, nad.Spec.Config)
		}
	}
	return list
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
