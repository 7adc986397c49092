package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func attachments(ids ...string) []api.Status {
	var all []api.Status
	for _, text := range ids {
		id, _ := api.ParseAttachmentID(text)
		all = append(all, api.Status{AttachmentID: id})
	}
	return all
}

func TestShortIDs(t *testing.T) {
	digits := strings.Repeat("0123456789", 7)[:64]
	tests := []struct {
		name string
		ids  []string
		want map[string]string
	}{
		{"OK nothing", nil, map[string]string{}},
		{"OK one of 64 digits, two interfaces", []string{digits + ":net1", digits + ":net2"}, map[string]string{digits: digits[:13]}},
		{"OK short ones", []string{"a:net1", "b:net1"}, map[string]string{"a": "a", "b": "b"}},
		{"OK alike for longer than usual", []string{digits[:20] + "aa:net1", digits[:20] + "ab:net1", "f" + digits[1:] + ":net1"},
			map[string]string{digits[:20] + "aa": digits[:20] + "aa", digits[:20] + "ab": digits[:20] + "ab", "f" + digits[1:]: "f" + digits[1:13]}},
		{"OK the beginning of another", []string{digits[:20] + ":net1", digits + ":net1"}, map[string]string{digits[:20]: digits[:20], digits: digits[:21]}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := attachments(tt.ids...)
			got := shortIDs(all)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
			for _, s := range all { // what is printed can be copied
				if found, err := find(all, got[s.ContainerID]+":"+s.IfName); err != nil || found.AttachmentID != s.AttachmentID {
					t.Errorf("%s finds %s, %v", got[s.ContainerID], found.AttachmentID, err)
				}
			}
		})
	}
}

func TestFind(t *testing.T) {
	all := attachments("0a1b:net1", "0a1b:net2", "0a1c:net1", "0a1c2d:net3", "ff:net1")
	for text, want := range map[string]string{
		"0a1b:net1": "0a1b:net1", "0a1b:net2": "0a1b:net2", "0a1c:net1": "0a1c:net1", "0a1c2:net3": "0a1c2d:net3",
		"0a1c": "0a1c:net1", "f": "ff:net1", "ff:net1": "ff:net1", "0a1c:net3": "0a1c2d:net3",
	} {
		if got, err := find(all, text); err != nil || got.AttachmentID.String() != want {
			t.Errorf("%q finds %s, %v, want %s", text, got.AttachmentID, err, want)
		}
	}
	for text, want := range map[string]string{
		"":          `no attachment ""`,
		":net1":     `no attachment ":net1"`,
		"0b":        `no attachment "0b": dhcp-engine leases lists`,
		"0a1b:net3": `no attachment "0a1b:net3"`,
		"0a1b":      `"0a1b" is ambiguous: it may be 0a1b:net1, 0a1b:net2`,
		"0a:net1":   `"0a:net1" is ambiguous: it may be 0a1b:net1, 0a1c:net1`,
	} {
		if got, err := find(all, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q finds %s, %v, want %q", text, got.AttachmentID, err, want)
		}
	}
}
