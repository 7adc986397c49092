package server

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

func TestPanic(t *testing.T) {
	r := serve(t, fake{})
	err := r.Detach(t.Context(), id) // a nil function
	if api.CodeOf(err) != api.CodeInternal || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("error is %v", err)
	}
	if logs := r.logs.String(); !strings.Contains(logs, "nil pointer") || !strings.Contains(logs, "server_test.go") {
		t.Errorf("log has neither reason nor stack:\n%s", logs)
	}
	if err := r.Healthy(t.Context()); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

// TestShutdown: work is cancelled, a Detach completes, the socket is removed,
// and a new engine can take over.
func TestShutdown(t *testing.T) {
	inAttach, inDetach := make(chan struct{}), make(chan struct{})
	attachEnded := make(chan struct{})
	r := serve(t, fake{
		attach: func(ctx context.Context, _ api.Request) (api.Lease, error) {
			close(inAttach)
			<-ctx.Done()
			close(attachEnded)
			return lease, ctx.Err()
		},
		detach: func(ctx context.Context, _ api.AttachmentID) error {
			close(inDetach)
			<-attachEnded // so it ends after the shutdown began
			return ctx.Err()
		},
	})
	attachErr, detachErr := make(chan error, 1), make(chan error, 1)
	go func() { _, err := r.Attach(t.Context(), request); attachErr <- err }()
	go func() { detachErr <- r.Detach(t.Context(), id) }()
	<-inAttach
	<-inDetach
	r.stop()
	if err := <-attachErr; api.CodeOf(err) != api.CodeTryAgain || errors.Is(err, api.ErrUnreachable) {
		t.Errorf("Attach: error is %v, want the engine's own with code %d", err, api.CodeTryAgain)
	}
	if err := <-detachErr; err != nil {
		t.Errorf("Detach: %v", err)
	}
	if err := r.Healthy(t.Context()); !errors.Is(err, api.ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

func TestShutdownBounded(t *testing.T) {
	inAttach, goOn := make(chan struct{}), make(chan struct{})
	r := serve(t, fake{attach: func(context.Context, api.Request) (api.Lease, error) {
		close(inAttach)
		<-goOn // deaf to its context
		return lease, nil
	}})
	defer close(goOn)
	r.srv.shutdown = time.Millisecond
	errC := make(chan error, 1)
	go func() { _, err := r.Attach(t.Context(), request); errC <- err }()
	<-inAttach
	r.stop()
	if err := <-errC; !errors.Is(err, api.ErrUnreachable) {
		t.Errorf("error is %v, want %v", err, api.ErrUnreachable)
	}
}
