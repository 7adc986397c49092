package delegate

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// object is a JSON object whose values keep their bytes. What a delegate gets
// must be what the network says, and a number that has been a float64 is not:
// 9007199254740993 would arrive as ...992.
type object map[string]json.RawMessage

// decodeObject decodes raw; name is for the error.
func decodeObject(name string, raw json.RawMessage) (object, error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, fmt.Errorf("%s: is no JSON object", name)
	}
	if o == nil {
		return nil, fmt.Errorf("%s: is null, not an object", name)
	}
	return o, nil
}

// encode is the inverse. Unlike json.Marshal it leaves <, > and & alone.
func (o object) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// has tells whether the key is there with a value other than null.
func (o object) has(key string) bool {
	raw, ok := o[key]
	return ok && string(raw) != "null"
}

// text is the string under key; empty when there is none.
func (o object) text(key string) string {
	var s string
	_ = json.Unmarshal(o[key], &s)
	return s
}
