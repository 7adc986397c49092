package sriov

import (
	"bufio"
	"bytes"
	"io"
	"path"
	"slices"
	"strings"
)

// match tells whether a modalias is of the kind that a driver's pattern says, as
// fnmatch(3) does: "*" is anything, "?" one character, "[...]" one of a set.
func match(pattern, alias string) bool {
	star, mark := -1, 0
	p, a := 0, 0
	for a < len(alias) {
		if p < len(pattern) && pattern[p] == '*' {
			star, mark = p, a
			p++
			continue
		}
		if n := one(pattern[p:], alias[a]); n > 0 {
			p, a = p+n, a+1
			continue
		}
		if star < 0 {
			return false
		}
		mark++
		p, a = star+1, mark
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// one matches one character; it returns how much of the pattern that took, 0 when
// it does not match.
func one(pattern string, c byte) int {
	switch {
	case pattern == "":
		return 0
	case pattern[0] == '?':
		return 1
	case pattern[0] == '[':
		if end := strings.IndexByte(pattern, ']'); end > 0 {
			if within(pattern[1:end], c) {
				return end + 1
			}
			return 0
		}
	}
	if pattern[0] == c {
		return 1
	}
	return 0
}

// within tells whether a set such as "0-9a" has a character.
func within(set string, c byte) bool {
	for i := 0; i < len(set); i++ {
		if i+2 < len(set) && set[i+1] == '-' {
			if set[i] <= c && c <= set[i+2] {
				return true
			}
			i += 2
		} else if set[i] == c {
			return true
		}
	}
	return false
}

// claims are the modules that a modules.alias names for a modalias, each once, in
// their order.
func claims(r io.Reader, alias string) ([]string, error) {
	var modules []string
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) == 3 && f[0] == "alias" && match(f[1], alias) {
			modules = add(modules, underscored(f[2]))
		}
	}
	return modules, s.Err()
}

// builtinClaims are the modules that a modules.builtin.modinfo, whose entries
// "module.alias=pattern" end in NUL, names for a modalias.
func builtinClaims(info []byte, alias string) []string {
	var modules []string
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		key, pattern, _ := strings.Cut(string(entry), "=")
		if module, ok := strings.CutSuffix(key, ".alias"); ok && match(pattern, alias) {
			modules = add(modules, underscored(module))
		}
	}
	return modules
}

func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// files are a module's file and those that it depends on, as modules.dep has them,
// in the order in which they are to be loaded; nil when it does not know it.
func files(r io.Reader, module string) ([]string, error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20) // a module that depends on many is a long line
	for s.Scan() {
		file, needs, found := strings.Cut(s.Text(), ":")
		if !found || moduleOf(file) != module {
			continue
		}
		all := append([]string{file}, strings.Fields(needs)...)
		slices.Reverse(all) // the last one needs none of the others
		return all, nil
	}
	return nil, s.Err()
}

// moduleOf is the name of the module in a file: net/igbvf.ko.xz has igbvf.
func moduleOf(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return underscored(name)
}
