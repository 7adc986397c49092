package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mount is a line of /proc/<pid>/mountinfo (proc(5)), as far as it is needed.
type mount struct {
	point, fsType string
	// propagated says that what is mounted below it elsewhere arrives here.
	propagated bool
}

func readMounts() ([]mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(text)), nil
}

func parseMounts(text string) (all []mount) {
	for line := range strings.Lines(text) {
		// Six fields, any number of optional ones, a dash, and three more.
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(kind) == 0 {
			continue
		}
		all = append(all, mount{point: unescape(f[4]), fsType: kind[0], propagated: slices.ContainsFunc(f[6:], func(option string) bool {
			return strings.HasPrefix(option, "shared:") || strings.HasPrefix(option, "master:")
		})})
	}
	return all
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// holder is the mount that a path is on: of those that lie above it the deepest, and
// of several on one point the last, which covers the others.
func holder(all []mount, path string) (m mount, ok bool) {
	for _, candidate := range all {
		within := candidate.point == "/" || path == candidate.point || strings.HasPrefix(path, candidate.point+"/")
		if within && len(candidate.point) >= len(m.point) {
			m, ok = candidate, true
		}
	}
	return m, ok
}

// hostPath tells of a folder that is the container's own, where it must be the node's.
func (e *examination) hostPath(folder, otherwise string) []Finding {
	all, err := readMounts()
	if err != nil {
		return nil // the kernel's check has told of a missing /proc
	}
	return judgeHostPath(all, resolved(folder), otherwise)
}

func judgeHostPath(all []mount, folder, otherwise string) []Finding {
	m, ok := holder(all, folder)
	if !ok || m.point != "/" || m.fsType != "overlay" {
		return nil
	}
	return []Finding{{HostPath, Error, fmt.Sprintf("%s is the container's own folder, not the node's: %s", folder, otherwise),
		"in /proc/self/mountinfo it is on the container's root, an overlay", "mount the node's " + folder + " there, as the DaemonSet in manifests/ does"}}
}

// resolved is path without symbolic links, as far as it exists.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolved(parent), filepath.Base(path))
}
