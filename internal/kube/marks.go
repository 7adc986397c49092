package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// marked lists the networks that are ours by annotation.
func (c *Cluster) marked() []string {
	names := []string{}
	for _, obj := range c.nadCache.GetStore().List() {
		if nad, ok := obj.(*nadv1.NetworkAttachmentDefinition); ok && annotated(nad) {
			names = append(names, nad.Namespace+"/"+nad.Name)
		}
	}
	slices.Sort(names)
	return names
}

// marksFile keeps api.NetworksFile in step with the marked networks. A plugin that
// finds no engine goes by it, so it is written only when it differs, and whole.
type marksFile struct {
	path string
	log  *slog.Logger
	// wantedC has room for one: changes while one is written are one change.
	wantedC chan struct{}

	mu      sync.Mutex
	written bool
}

func newMarksFile(path string, log *slog.Logger) *marksFile {
	return &marksFile{path: path, log: log, wantedC: make(chan struct{}, 1)}
}

// changed says that the list may have changed. It is for a complete cache only.
func (f *marksFile) changed() {
	select {
	case f.wantedC <- struct{}{}:
	default:
	}
}

// isWritten tells whether the list has been on disk since the start.
func (f *marksFile) isWritten() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.written
}

// run writes what marked returns after each change, and again after an error.
func (f *marksFile) run(ctx context.Context, marked func() []string) {
	const again = 5 * time.Second
	var retryC <-chan time.Time
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wantedC:
		case <-retryC:
		}
		retryC = nil
		if err := f.write(marked()); err != nil {
			if !failed {
				f.log.Warn("the list of marked networks is not written", "error", err)
			}
			failed, retryC = true, time.After(again)
			continue
		}
		failed = false
		f.mu.Lock()
		f.written = true
		f.mu.Unlock()
	}
}

func (f *marksFile) write(names []string) error {
	data, err := json.Marshal(api.Networks{Marked: names})
	if err != nil {
		return err
	}
	data = append(data, '\n')
	have, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("the list of marked networks cannot be read; writing it anew", "error", err)
	}
	if err == nil && bytes.Equal(have, data) {
		return nil
	}
	return atomicfile.Write(f.path, data, 0o600)
}
