package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// field takes the value of one key; path is for messages.
type field func(path string, raw json.RawMessage)

// decoder decodes JSON strictly and collects what is wrong instead of ending at
// the first problem. The package encoding/json can do neither: it takes a key in
// any case, the last of two equal keys, and stops at the first wrong type.
type decoder struct {
	problems Problems
	// seen are the paths that had a value.
	seen map[string]bool
	// fqdn is the path of the code of a client FQDN option; empty: none.
	fqdn string
}

func (d *decoder) problem(path, format string, args ...any) {
	d.problems = append(d.problems, path+": "+fmt.Sprintf(format, args...))
}

// required adds a problem when the object at path had no such key.
func (d *decoder) required(path, key string) {
	if !d.seen[path+"."+key] {
		d.problem(path+"."+key, "is missing")
	}
}

// object hands each value of a JSON object to the field of its key; null values
// are left out. It is false when raw is no object.
func (d *decoder) object(path string, raw json.RawMessage, fields map[string]field) bool {
	if isNull(raw) {
		return true
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		d.wrongType(path, raw, "an object")
		return false
	}
	for dec.More() {
		key, value, err := member(dec)
		if err != nil {
			d.problem(path, "is no JSON: %v", err)
			return false
		}
		at := path + "." + key
		take, known := fields[key]
		switch {
		case !known:
			d.problem(at, "unknown key")
		case d.seen[at]:
			d.problem(at, "is there twice")
		case !isNull(value):
			d.see(at)
			take(at, value)
		}
	}
	return d.ends(path, dec)
}

// array hands each element of a JSON array to take.
func (d *decoder) array(path string, raw json.RawMessage, take field) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		d.wrongType(path, raw, "a list")
		return
	}
	for i := 0; dec.More(); i++ {
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			d.problem(path, "is no JSON: %v", err)
			return
		}
		take(fmt.Sprintf("%s[%d]", path, i), value)
	}
	d.ends(path, dec)
}

// ends reads the closing delimiter, and sees that nothing follows it.
func (d *decoder) ends(path string, dec *json.Decoder) bool {
	_, err := dec.Token()
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			return true
		}
		err = errors.New("something follows its end")
	}
	d.problem(path, "is no JSON: %v", err)
	return false
}

func (d *decoder) see(path string) {
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[path] = true
}

func (d *decoder) string(path string, raw json.RawMessage) (string, bool) {
	var s string
	if isNull(raw) || json.Unmarshal(raw, &s) != nil {
		d.wrongType(path, raw, "a string")
		return "", false
	}
	return s, true
}

func (d *decoder) bool(path string, raw json.RawMessage, into *bool) {
	var b bool
	if isNull(raw) || json.Unmarshal(raw, &b) != nil {
		d.wrongType(path, raw, "true or false")
		return
	}
	*into = b
}

// integer decodes a whole number. It may be written with an exponent or a
// fraction of zero: on its way through Multus a number has been a float64.
func (d *decoder) integer(path string, raw json.RawMessage) (int64, bool) {
	var n json.Number
	if isNull(raw) || raw[0] == '"' || json.Unmarshal(raw, &n) != nil {
		d.wrongType(path, raw, "a number")
		return 0, false
	}
	if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
		return i, true
	}
	// Beyond 2^53 not every integer is a float64, so no value there can be
	// meant; none of our ranges reaches so far.
	f, err := n.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		d.problem(path, "%s is no whole number in range", n)
		return 0, false
	}
	return int64(f), true
}

func (d *decoder) wrongType(path string, raw json.RawMessage, want string) {
	d.problem(path, "is %s, not %s", kind(raw), want)
}

// member reads a key and its value.
func member(dec *json.Decoder) (string, json.RawMessage, error) {
	t, err := dec.Token()
	if err != nil {
		return "", nil, err
	}
	key, ok := t.(string)
	if !ok {
		return "", nil, fmt.Errorf("%v where a key should be", t)
	}
	var value json.RawMessage
	err = dec.Decode(&value)
	return key, value, err
}

func isNull(raw json.RawMessage) bool { return string(bytes.TrimSpace(raw)) == "null" }

// kind names a JSON value in the words of messages.
func kind(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}
