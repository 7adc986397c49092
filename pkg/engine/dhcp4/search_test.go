package dhcp4

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSearch(t *testing.T) {
	long := strings.Repeat("\x3f"+strings.Repeat("a", 63), 4)
	for _, tt := range []struct {
		name string
		v    string
		want []string
		err  string
	}{
		{name: "OK one", v: "\x04site\x07example\x00", want: []string{"site.example"}},
		{name: "OK two", v: "\x01a\x00\x01b\x00", want: []string{"a", "b"}},
		{
			name: "OK the example of RFC 3397",
			v:    "\x03eng\x05apple\x03com\x00\x09marketing\xc0\x04",
			want: []string{"eng.apple.com", "marketing.apple.com"},
		},
		{name: "OK pointer to a pointer", v: "\x01a\x01b\x00\x01c\xc0\x02\x01d\xc0\x05", want: []string{"a.b", "c.b", "d.c.b"}},
		{name: "OK the root is left out", v: "\x00\x01a\x00", want: []string{"a"}},
		{name: "bad pointer to itself", v: "\xc0\x00", err: "has a pointer from 0 to 0, which is not backwards"},
		{name: "bad pointer into its own name", v: "\x01a\xc0\x00", err: "has a pointer from 2 to 0, which is not backwards"},
		{name: "bad pointer forward", v: "\xc0\x02\x01a\x00", err: "has a pointer from 0 to 2, which is not backwards"},
		{name: "bad two pointers in a ring", v: "\x01a\xc0\x04\xc0\x00", err: "has a pointer from 2 to 4, which is not backwards"},
		{name: "bad end in a pointer", v: "\x01a\x00\xc0", err: "ends within a pointer"},
		{name: "bad end in a label", v: "\x05ab", err: "ends within a label"},
		{name: "bad end without a root", v: "\x01a\x00\x01b", err: "ends within a name"},
		{name: "bad type of label", v: "\x41a\x00", err: "has a label of type 0x40"},
		{name: "bad name of 255 bytes", v: long + "\x00", err: "has a name of more than 253 bytes"},
		{name: "bad name for a resolv.conf", v: "\x03a b\x00", err: `has the name "a b"`},
		{name: "bad empty", v: "", err: "has no name"},
		{name: "bad nothing but roots", v: "\x00\x00", err: "has no name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseSearch([]byte(tt.v))
			if text := errorText(err); text != tt.err {
				t.Errorf("error %q, want %q", text, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSearchIsBounded: a pointer of two bytes can say a long name again, so a small
// option could fill a large list.
func TestSearchIsBounded(t *testing.T) {
	v := "\x04site\x00" + strings.Repeat("\xc0\x00", 100)
	if names, err := parseSearch([]byte(v)); err != nil || len(names) > maxSearch+1 {
		t.Errorf("%d names (%v) are read to use %d", len(names), err, maxSearch)
	}
	l, remarks, err := parse(t, testLease.Addr, "10.0.0.5", optSearch, []byte(v))
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Search) != maxSearch {
		t.Errorf("%d names, want %d", len(l.Search), maxSearch)
	}
	want := []string{fmt.Sprintf("option 119 (search list) has more than %d names: the others are not used", maxSearch)}
	if diff := cmp.Diff(want, remarks); diff != "" {
		t.Errorf("remarks (-want +got):\n%s", diff)
	}
}

func TestIsDomain(t *testing.T) {
	for name, want := range map[string]bool{
		"site.example": true, "_tcp.Site-1.example": true, "a": true,
		"": false, ".": false, "a..b": false, "a.": false, "a b": false, "ä.example": false,
		strings.Repeat("a", 64): false, strings.Repeat("a.", 126) + "a": true, strings.Repeat("a.", 127) + "a": false,
	} {
		if got := isDomain(name); got != want {
			t.Errorf("isDomain(%q) is %v", name, got)
		}
	}
}
