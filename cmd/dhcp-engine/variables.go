package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// variablePrefix begins the name of every variable of ours.
const variablePrefix = "DHCP_ENGINE_"

// envName is the environment variable of a flag.
func envName(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variables are an environment, "NAME=value" each.
type variables []string

// get returns the value of a variable; empty when there is none.
func (v variables) get(name string) string {
	for _, entry := range v {
		if n, value, _ := strings.Cut(entry, "="); n == name {
			return value
		}
	}
	return ""
}

// unknown has an error for each variable that has our prefix and a value, and is none
// of ours. A misspelled one would be a setting that does not hold, and nobody would
// know.
func (v variables) unknown() []error {
	var problems []error
	known := knownVariables()
	services := v.services()
	for _, entry := range v {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" || !strings.HasPrefix(name, variablePrefix) || slices.Contains(known, name) || ofService(services, name) {
			continue
		}
		hint := "dhcp-engine run -h lists those of the engine"
		if near := nearest(known, name); near != "" {
			hint = "is " + near + " meant?"
		}
		problems = append(problems, fmt.Errorf("%s: unknown variable; %s", name, hint))
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return problems
}

// knownVariables are those of all commands: a container has one environment for all
// that runs in it.
func knownVariables() []string {
	in := newInput("", nil)
	declareEngine(in)
	declareInstall(in)
	var names []string
	for name := range in.env {
		names = append(names, envName(name))
	}
	slices.Sort(names)
	return names
}

// services are the beginnings of the variables by which Kubernetes tells a pod of the
// Services in its namespace: DHCP_ENGINE of a Service dhcp-engine.
func (v variables) services() []string {
	var prefixes []string
	for _, entry := range v {
		name, _, _ := strings.Cut(entry, "=")
		if prefix, ok := strings.CutSuffix(name, "_SERVICE_HOST"); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// serviceVariable is what follows the beginning (Kubernetes, pkg/kubelet/envvars).
var serviceVariable = regexp.MustCompile(`^_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

func ofService(services []string, name string) bool {
	return slices.ContainsFunc(services, func(service string) bool {
		rest, ok := strings.CutPrefix(name, service)
		return ok && serviceVariable.MatchString(rest)
	})
}

// nearest returns the known variable that name was meant to be: no more than a quarter
// of its letters, and one at least, may be wrong. It is empty when there is none.
func nearest(known []string, name string) string {
	best, distance := "", 0
	text := strings.TrimPrefix(name, variablePrefix)
	for _, k := range known {
		d := edits(strings.ToUpper(text), strings.TrimPrefix(k, variablePrefix))
		if d <= max(1, len(text)/4) && (best == "" || d < distance) {
			best, distance = k, d
		}
	}
	return best
}

// edits counts the letters that are to be put in, left out or changed, and the
// neighbours that are to be exchanged, to make b of a.
func edits(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			if i == 0 || j == 0 {
				d[i][j] = i + j
				continue
			}
			change := 0
			if a[i-1] != b[j-1] {
				change = 1
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
