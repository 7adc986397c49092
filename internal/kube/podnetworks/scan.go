package podnetworks

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// A member is a key of an object with its value, as places in a text.
type member struct {
	name             string // decoded
	keyStart, keyEnd int
	start, end       int // of the value
}

// object is an object in a text, which begins at start.
type object struct {
	text    string
	start   int
	members []member
}

// scanObject takes the object apart that begins at start of a text that is JSON.
func scanObject(text string, start int) (object, error) {
	o := object{text: text, start: start}
	seen := make(map[string]bool)
	at := skipSpace(text, start+1)
	for text[at] != '}' {
		if text[at] == ',' {
			at = skipSpace(text, at+1)
		}
		m := member{keyStart: at, keyEnd: skipValue(text, at)}
		if err := json.Unmarshal([]byte(text[m.keyStart:m.keyEnd]), &m.name); err != nil {
			return object{}, fmt.Errorf("key %s: %w", text[m.keyStart:m.keyEnd], err)
		}
		if seen[m.name] {
			return object{}, fmt.Errorf("key %q stands there twice", m.name)
		}
		seen[m.name] = true
		colon := skipSpace(text, m.keyEnd)
		m.start = skipSpace(text, colon+1)
		m.end = skipValue(text, m.start)
		o.members = append(o.members, m)
		at = skipSpace(text, m.end)
	}
	return o, nil
}

func skipSpace(text string, at int) int {
	for text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r' {
		at++
	}
	return at
}

// skipValue is the end of the value that begins at a place of a text that is JSON.
func skipValue(text string, at int) int {
	switch text[at] {
	case '"':
		return skipString(text, at)
	case '{', '[':
		return skipNested(text, at)
	}
	for at < len(text) {
		switch text[at] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return at
		}
		at++
	}
	return at
}

func skipString(text string, at int) int {
	for at++; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at + 1
}

func skipNested(text string, at int) int {
	depth := 0
	for {
		switch text[at] {
		case '"':
			at = skipString(text, at)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		at++
		if depth == 0 {
			return at
		}
	}
}

func (o object) index(name string) int {
	for i, m := range o.members {
		if m.name == name {
			return i
		}
	}
	return -1
}

// value is the text of a key's value.
func (o object) value(name string) (string, bool) {
	i := o.index(name)
	if i < 0 {
		return "", false
	}
	return o.text[o.members[i].start:o.members[i].end], true
}

// set returns the whole text with another value of a key. A value that means the
// same stays as it is written; a new key comes last, written like the first.
func (o object) set(name, value string) string {
	if i := o.index(name); i >= 0 {
		m := o.members[i]
		if same(o.text[m.start:m.end], value) {
			return o.text
		}
		return o.text[:m.start] + value + o.text[m.end:]
	}
	key, _ := json.Marshal(name) // a string always can be
	if len(o.members) == 0 {
		return o.text[:o.start+1] + string(key) + ":" + value + o.text[o.start+1:]
	}
	first, last := o.members[0], o.members[len(o.members)-1]
	lead := o.text[o.start+1 : first.keyStart]
	colon := o.text[first.keyEnd:first.start]
	return o.text[:last.end] + "," + lead + string(key) + colon + value + o.text[last.end:]
}

// remove returns the whole text without a key.
func (o object) remove(name string) string {
	i := o.index(name)
	switch {
	case i < 0:
		return o.text
	case i > 0:
		return o.text[:o.members[i-1].end] + o.text[o.members[i].end:]
	case len(o.members) > 1:
		return o.text[:o.members[0].keyStart] + o.text[o.members[1].keyStart:]
	}
	return o.text[:o.members[0].keyStart] + o.text[o.members[0].end:]
}

// same tells whether two texts are the same value.
func same(a, b string) bool {
	if a == b {
		return true
	}
	var va, vb any
	return json.Unmarshal([]byte(a), &va) == nil && json.Unmarshal([]byte(b), &vb) == nil && reflect.DeepEqual(va, vb)
}
