package network

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// part is a piece of a template: literal text, or the name of a placeholder.
type part struct {
	text        string
	placeholder bool
}

// placeholders are the names that a template may hold, in the order in which
// messages list them.
func placeholders() []string {
	return []string{"namespace", "pod", "name", "uid", "network", "interface", "container", "mac"}
}

// value is what stands for a placeholder.
func (id Identity) value(placeholder string) string {
	switch placeholder {
	case "namespace":
		return id.Namespace
	case "pod":
		return id.Pod
	case "name":
		return cmp.Or(id.Hostname, id.Pod)
	case "uid":
		return id.UID
	case "network":
		return id.Network
	case "interface":
		return id.IfName
	case "container":
		return id.ContainerID
	case "mac":
		return id.HardwareAddr.String()
	}
	panic("network: unknown placeholder " + placeholder)
}

// parseTemplate splits text into literals and placeholders. A brace is always
// the border of a placeholder; there is no way to write one as text.
func parseTemplate(text string) ([]part, error) {
	var parts []part
	for text != "" {
		at := strings.IndexAny(text, "{}")
		if at < 0 {
			return append(parts, part{text: text}), nil
		}
		if at > 0 {
			parts = append(parts, part{text: text[:at]})
		}
		if text[at] == '}' {
			return nil, fmt.Errorf("has a } without a { before it")
		}
		name, rest, ok := strings.Cut(text[at+1:], "}")
		if !ok {
			return nil, fmt.Errorf("has a { without a } after it")
		}
		if !slices.Contains(placeholders(), name) {
			return nil, fmt.Errorf("has the unknown placeholder {%s}; known are {%s}",
				name, strings.Join(placeholders(), "} {"))
		}
		parts = append(parts, part{text: name, placeholder: true})
		text = rest
	}
	return parts, nil
}

// hasPlaceholder tells whether the parts depend on who the client is.
func hasPlaceholder(parts []part) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return p.placeholder })
}

// tellsPodsApart tells whether the template has another value for each pod. A
// template that cannot be parsed does not, nor does {name}: a VM and a pod may have
// the same.
func tellsPodsApart(template string) bool {
	parts, err := parseTemplate(template)
	return err == nil && slices.ContainsFunc(parts, func(p part) bool {
		return p.placeholder && (p.text == "pod" || p.text == "uid" || p.text == "container")
	})
}

// expand fills a template in. A placeholder without a value is an error, since
// two clients could become one by it.
func expand(template string, id Identity) (string, error) {
	parts, err := parseTemplate(template)
	if err != nil {
		return "", fmt.Errorf("template %q %w", template, err)
	}
	var b strings.Builder
	for _, p := range parts {
		if !p.placeholder {
			b.WriteString(p.text)
			continue
		}
		v := id.value(p.text)
		if v == "" {
			return "", fmt.Errorf("template %q: {%s} has no value here (does the runtime tell the pod in CNI_ARGS?)", template, p.text)
		}
		b.WriteString(v)
	}
	return b.String(), nil
}
