package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// namespaces is what is read of pods' network namespaces.
type namespaces struct {
	roots  []string // those that exist, but /proc
	mounts []mount
	// seen is how many there are in the roots; pods is how many must be there, -1
	// where nobody knows.
	seen, pods int
	// lost are those of attachments that are no namespace here.
	lost []string
}

func (e *examination) checkNamespaces(context.Context) ([]Finding, string) {
	n := namespaces{pods: -1}
	n.mounts, _ = readMounts() // the kernel's check has told of a missing /proc
	inodes := map[uint64]bool{}
	for _, root := range e.cfg.NetnsRoots {
		root = resolved(root)
		entries, err := os.ReadDir(root)
		if err != nil || root == "/proc" || slices.Contains(n.roots, root) {
			continue
		}
		n.roots = append(n.roots, root)
		for _, entry := range entries {
			if inode, ok := namespaceAt(filepath.Join(root, entry.Name())); ok {
				inodes[inode] = true
			}
		}
	}
	n.seen = len(inodes)
	if e.cluster != nil && e.cluster.podsErr == nil {
		n.pods = e.cluster.withNamespace()
	}
	for _, a := range e.attachments {
		if _, ok := namespaceAt(a.Netns); !ok && a.Netns != "" && lives(a.State) {
			n.lost = append(n.lost, fmt.Sprintf("%s (%s)", a.Netns, a.AttachmentID))
		}
	}
	return n.judge(), fmt.Sprintf("network namespaces seen: %d", n.seen)
}

// lives tells of an attachment's state whether its namespace must be there.
func lives(state string) bool {
	return !slices.Contains([]string{"SUPERSEDED", "ORPHANED", "RELEASING"}, state)
}

// namespaceAt tells whether a namespace is mounted at path, and which: without
// propagation an empty file is there in its place.
func namespaceAt(path string) (inode uint64, ok bool) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(path, &fs) != nil || fs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return 0, false
	}
	return st.Ino, true
}

func (n namespaces) judge() (found []Finding) {
	if len(n.roots) == 0 {
		return []Finding{{NetnsRootMissing, Error, "no folder of network namespaces is there", "none of the folders of --netns-root exists but /proc",
			"mount the node's /run/netns at the same path, with mountPropagation: HostToContainer"}}
	}
	for _, root := range n.roots {
		found = append(found, judgeHostPath(n.mounts, root, "no namespace of a pod is ever seen")...)
		if m, ok := holder(n.mounts, root); ok && m.point == root && !m.propagated {
			found = append(found, Finding{NetnsPrivate, Error, "namespaces of pods that are made from now on are not seen",
				seen("in /proc/self/mountinfo %s is a private mount", root), "mount it with mountPropagation: HostToContainer"})
		}
	}
	if len(n.lost) > 0 {
		found = append(found, Finding{NetnsUnseen, Error, "namespaces of pods with a lease are not seen here", strings.Join(n.lost, ", "),
			"mount /run/netns with mountPropagation: HostToContainer; a runtime that hands on paths below /proc needs hostPID: true"})
	}
	if n.seen < n.pods {
		found = append(found, Finding{NetnsFew, Warning, "not all pods of this node have a network namespace that can be seen here",
			seen("running pods with a network of their own: %d; namespaces in %s: %d", n.pods, strings.Join(n.roots, ", "), n.seen),
			"mount /run/netns with mountPropagation: HostToContainer, and name a runtime's other folder with --netns-root"})
	}
	return found
}
