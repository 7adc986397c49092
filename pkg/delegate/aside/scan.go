package aside

import "unicode/utf8"

// scanner reads JSON (RFC 8259) as encoding/json does, which takes longer to get
// ready than this whole package to decide. A method that returns false has met what
// is no JSON.
type scanner struct {
	raw []byte
	at  int
}

// maxDepth is encoding/json's.
const maxDepth = 10000

// Members calls visit for each member of the object raw, in order, with the value
// as it is written; false when raw is no JSON object.
func Members(raw []byte, visit func(key string, value []byte)) bool {
	s := scanner{raw: raw}
	return s.is('{') && s.object(1, visit) && s.end()
}

// Elements is Members for a list.
func Elements(raw []byte, visit func(value []byte)) bool {
	s := scanner{raw: raw}
	return s.is('[') && s.list(1, visit) && s.end()
}

// is tells whether c comes next, behind spaces.
func (s *scanner) is(c byte) bool {
	for s.at < len(s.raw) {
		switch s.raw[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return s.raw[s.at] == c
		}
	}
	return false
}

// eat takes c if it comes next.
func (s *scanner) eat(c byte) bool {
	if !s.is(c) {
		return false
	}
	s.at++
	return true
}

func (s *scanner) end() bool {
	s.is(0)
	return s.at == len(s.raw)
}

// value takes any value.
func (s *scanner) value(depth int) bool {
	switch {
	case s.is('{'):
		return s.object(depth+1, nil)
	case s.is('['):
		return s.list(depth+1, nil)
	case s.is('"'):
		return s.text()
	case s.at == len(s.raw):
		return false
	}
	switch s.raw[s.at] {
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

func (s *scanner) object(depth int, visit func(string, []byte)) bool {
	if depth > maxDepth || !s.eat('{') {
		return false
	}
	if s.eat('}') {
		return true
	}
	for {
		if !s.is('"') {
			return false
		}
		key := s.at
		if !s.text() {
			return false
		}
		name := s.raw[key:s.at]
		if !s.eat(':') {
			return false
		}
		s.is(0) // to where the value begins
		begin := s.at
		if !s.value(depth) {
			return false
		}
		if visit != nil {
			visit(decodeText(name), s.raw[begin:s.at])
		}
		if s.eat('}') {
			return true
		}
		if !s.eat(',') {
			return false
		}
	}
}

func (s *scanner) list(depth int, visit func([]byte)) bool {
	if depth > maxDepth || !s.eat('[') {
		return false
	}
	if s.eat(']') {
		return true
	}
	for {
		s.is(0)
		begin := s.at
		if !s.value(depth) {
			return false
		}
		if visit != nil {
			visit(s.raw[begin:s.at])
		}
		if s.eat(']') {
			return true
		}
		if !s.eat(',') {
			return false
		}
	}
}

func (s *scanner) word(w string) bool {
	if len(s.raw)-s.at < len(w) || string(s.raw[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

// digits takes one or more.
func (s *scanner) digits() bool {
	begin := s.at
	for s.at < len(s.raw) && s.raw[s.at] >= '0' && s.raw[s.at] <= '9' {
		s.at++
	}
	return s.at > begin
}

// one takes one of two characters.
func (s *scanner) one(a, b byte) bool {
	if s.at == len(s.raw) || s.raw[s.at] != a && s.raw[s.at] != b {
		return false
	}
	s.at++
	return true
}

func (s *scanner) number() bool {
	s.one('-', '-')
	if !s.one('0', '0') && !s.digits() {
		return false
	}
	if s.one('.', '.') && !s.digits() {
		return false
	}
	if s.one('e', 'E') {
		s.one('+', '-')
		return s.digits()
	}
	return true
}

// text takes a string.
func (s *scanner) text() bool {
	for s.at++; s.at < len(s.raw); s.at++ {
		switch c := s.raw[s.at]; {
		case c == '"':
			s.at++
			return true
		case c < ' ':
			return false
		case c == '\\':
			s.at++
			if s.at == len(s.raw) || !escapes(s.raw[s.at:]) {
				return false
			}
		}
	}
	return false
}

// escapes tells whether what follows a backslash is an escape. All but the first
// character of it are ordinary ones.
func escapes(raw []byte) bool {
	switch raw[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		_, ok := hex4(raw[1:])
		return ok
	}
	return false
}

func hex4(raw []byte) (rune, bool) {
	if len(raw) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range raw[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// decodeText is the text of a string that scanner.text has taken; empty for what is
// no string.
func decodeText(raw []byte) string {
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	raw = raw[1 : len(raw)-1]
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			r, size := utf8.DecodeRune(raw[i:]) // what is no UTF-8 becomes U+FFFD
			out = utf8.AppendRune(out, r)
			i += size
			continue
		}
		if raw[i+1] != 'u' {
			out = append(out, unescaped(raw[i+1]))
			i += 2
			continue
		}
		r, size := decodeUnicode(raw[i:])
		out = utf8.AppendRune(out, r)
		i += size
	}
	return string(out)
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// decodeUnicode decodes \uXXXX, or two of them that are one character. A half of
// such a pair alone becomes U+FFFD in AppendRune.
func decodeUnicode(raw []byte) (r rune, size int) {
	r, _ = hex4(raw[2:])
	if r >= 0xd800 && r < 0xdc00 && len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
		if low, ok := hex4(raw[8:]); ok && low >= 0xdc00 && low < 0xe000 {
			return (r-0xd800)<<10 | (low - 0xdc00) + 0x10000, 12
		}
	}
	return r, 6
}
