package nic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// Config is what Links is told once.
type Config struct {
	// Roots are the folders below which the path of a namespace must lie, after
	// its symbolic links are resolved. Absolute; a root that does not exist (yet)
	// allows nothing and is no error.
	Roots []string
	// Logger is told what is swallowed, such as packets that cannot be parsed;
	// nil discards it.
	Logger *slog.Logger
}

// Links is the kernel as the engine sees it. It is safe for concurrent use and
// needs no closing.
type Links struct {
	roots []string
	log   *slog.Logger
	hosts []namespaceID
	// visits and calls hold a token for each visit and each call under way.
	visits, calls chan struct{}
	acd           acdTimes
}

var _ engine.Links = (*Links)(nil)

// maxVisits bounds the threads that are inside other namespaces at one time. A
// Go thread once started is kept for the life of the process, so without a
// bound a thousand attachments restored at once would mean a thousand threads.
// A visit takes well under a millisecond: more of them would only queue for the
// kernel's rtnl lock.
const maxVisits = 2

// maxCalls bounds the threads that wait for the kernel for the same reason: a
// change of an interface waits for the kernel's lock on all of them, and the end
// of a packet socket waits until no frame can be on its way to it.
const maxCalls = 3

// take waits for a token, which done gives back. A ctx that has ended gets none.
func take(ctx context.Context, tokens chan struct{}) (done func(), err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	select {
	case tokens <- struct{}{}:
		return func() { <-tokens }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Open checks cfg and notes which namespaces are the host's: the one in which
// the engine runs, and that of process 1 where the engine may see it.
func Open(cfg Config) (*Links, error) {
	if len(cfg.Roots) == 0 {
		return nil, errors.New("no folder is allowed as root of network namespaces")
	}
	l := &Links{
		log:    cfg.Logger,
		visits: make(chan struct{}, maxVisits),
		calls:  make(chan struct{}, maxCalls),
		acd:    rfc5227(),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	for _, root := range cfg.Roots {
		if !filepath.IsAbs(root) {
			return nil, fmt.Errorf("netns root %q is not absolute", root)
		}
		l.roots = append(l.roots, filepath.Clean(root))
	}
	own, err := namespaceAt(ownNetns)
	if err != nil {
		return nil, fmt.Errorf("identify own netns: %w", err)
	}
	l.hosts = append(l.hosts, own)
	if first, err := namespaceAt("/proc/1/ns/net"); err == nil {
		l.hosts = append(l.hosts, first)
	} else {
		// A container without CAP_SYS_PTRACE may not look. Its own namespace is
		// the host's all the same when the pod has hostNetwork.
		l.log.Debug("netns of process 1 is not visible", "err", err)
	}
	return l, nil
}
