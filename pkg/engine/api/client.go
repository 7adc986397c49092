package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
)

// DefaultSocket is where the engine listens unless told otherwise.
const DefaultSocket = "/run/dhcp-meta/engine.sock"

// ErrUnreachable says that no engine answered: nobody listens, or who listened
// ended before the answer was complete. What a request that broke off has done
// is unknown; all but List may be repeated. It has CNI code CodeTryAgain.
var ErrUnreachable = errors.New("dhcp-engine cannot be reached")

// Client asks the engine. The zero value is ready for use, by any number of
// goroutines: every call has a connection of its own, which ends with the call,
// and a call ends with its ctx, which tells the engine to stop the work.
//
// Errors: ErrUnreachable; a *types.Error as the engine gave it; the error of
// ctx; or one that says that it was no engine that answered. All name the
// socket but those of the engine itself, and CodeOf knows the code of each.
type Client struct {
	// Socket is the path of the engine's socket; empty: DefaultSocket.
	Socket string
}

// Marked asks whether the network of the request is one of ours by the mark of its
// NetworkAttachmentDefinition.
func (c Client) Marked(ctx context.Context, r Request) (bool, error) {
	var m Mark
	err := c.call(ctx, "POST", attachmentPath(r.AttachmentID)+"/marked", r, &m)
	return m.Marked, err
}

// Prepare asks whether the request can be served, before the interface exists.
func (c Client) Prepare(ctx context.Context, r Request) error {
	return c.call(ctx, "POST", attachmentPath(r.AttachmentID)+"/prepare", r, nil)
}

// Attach returns when the interface has its address. r.Timeout says how long
// the engine may take; ctx should end later, so that the engine's own error
// arrives.
func (c Client) Attach(ctx context.Context, r Request) (Lease, error) {
	var l Lease
	err := c.call(ctx, "PUT", attachmentPath(r.AttachmentID), r, &l)
	return l, err
}

// Check returns the lease if all of it is on the interface as it should be.
func (c Client) Check(ctx context.Context, r Request) (Lease, error) {
	var l Lease
	err := c.call(ctx, "POST", attachmentPath(r.AttachmentID)+"/check", r, &l)
	return l, err
}

// Detach gives the address back. The engine carries on with it when ctx ends.
func (c Client) Detach(ctx context.Context, id AttachmentID) error {
	return c.call(ctx, "DELETE", attachmentPath(id), nil, nil)
}

// Sweep ends the attachments of a network that are not in s.Valid; an empty
// list ends all of them.
func (c Client) Sweep(ctx context.Context, s Sweep) error {
	if s.Valid == nil {
		s.Valid = []AttachmentID{} // the engine refuses null, as a list forgotten
	}
	return c.call(ctx, "POST", "/v1/sweep", s, nil)
}

// List returns all attachments, sorted by id.
func (c Client) List(ctx context.Context) ([]Status, error) {
	var l []Status
	err := c.call(ctx, "GET", "/v1/attachments", nil, &l)
	return l, err
}

// Renew asks a server for the lease now: with rebind any, otherwise the one that
// granted it. It returns what has become of the attachment, half a minute later
// at most.
func (c Client) Renew(ctx context.Context, id AttachmentID, rebind bool) (Status, error) {
	verb := "/renew"
	if rebind {
		verb = "/rebind"
	}
	var s Status
	err := c.call(ctx, "POST", attachmentPath(id)+verb, nil, &s)
	return s, err
}

// Release takes the address of a pod away that goes on to run.
func (c Client) Release(ctx context.Context, id AttachmentID) error {
	return c.call(ctx, "POST", attachmentPath(id)+"/release", nil, nil)
}

// Probe returns what the servers of a network offer. It takes r.Timeout, however
// many answer.
func (c Client) Probe(ctx context.Context, r ProbeRequest) (ProbeReport, error) {
	var p ProbeReport
	err := c.call(ctx, "POST", "/v1/probe", r, &p)
	return p, err
}

// Status is nil when Attach can work now and its lease be known everywhere: the
// answer to CNI's STATUS. It has CodeNotReady or CodeLimited otherwise.
func (c Client) Status(ctx context.Context) error { return c.call(ctx, "GET", "/v1/status", nil, nil) }

// Ready is nil when Attach can work now.
func (c Client) Ready(ctx context.Context) error { return c.call(ctx, "GET", "/readyz", nil, nil) }

// Healthy is nil when an engine answers, ready or not.
func (c Client) Healthy(ctx context.Context) error { return c.call(ctx, "GET", "/healthz", nil, nil) }

func attachmentPath(id AttachmentID) string {
	return "/v1/attachments/" + url.PathEscape(id.ContainerID) + "/" + url.PathEscape(id.IfName)
}

// call sends in as JSON, unless it is nil, and decodes the answer into out,
// unless that is nil.
func (c Client) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			// Only a RawMessage that is no JSON gets here: the dhcp object.
			return WithCode(CodeConfig, fmt.Errorf("encode the request to dhcp-engine: %w", err))
		}
	}
	socket := c.Socket
	if socket == "" {
		socket = DefaultSocket
	}
	status, answer, err := exchange(ctx, socket, encodeRequest(method, path, body))
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return engineError(socket, status, answer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("decode the answer at %s: %w: is it a dhcp-engine of this release?", socket, err)
	}
	return nil
}

// exchange sends one request over a connection of its own and reads the answer.
func exchange(ctx context.Context, socket string, request []byte) (status int, body []byte, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, nil, unreachable(ctx, socket, err)
	}
	defer conn.Close()
	// Closing is also what the engine notices: it ends the work for this request.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	// An engine that refuses early, a body too large for instance, may answer and
	// close before it has read all: its answer counts, not the error of the write.
	_, writeErr := conn.Write(request)
	status, body, err = readResponse(conn)
	switch {
	case err == nil:
		return status, body, nil
	case errors.Is(err, errProtocol):
		return 0, nil, fmt.Errorf("read the answer at %s: %w: is it dhcp-engine that listens there?", socket, err)
	case writeErr != nil:
		return 0, nil, unreachable(ctx, socket, writeErr)
	default:
		return 0, nil, unreachable(ctx, socket, err)
	}
}

// unreachable makes an error of ErrUnreachable, or of ctx when that has ended.
func unreachable(ctx context.Context, socket string, err error) error {
	if ctx.Err() != nil {
		return WithCode(CodeTryAgain, fmt.Errorf("wait for dhcp-engine at %s: %w", socket, ctx.Err()))
	}
	hint := "it ended in the middle of the request: look at its log for why"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		hint = "is the dhcp-engine of this node running? look at its pod, or its unit, and at its --socket"
	case errors.Is(err, fs.ErrPermission):
		hint = "only root may use the socket"
	case errors.Is(err, syscall.EINVAL):
		hint = "a socket's path must be shorter than 108 bytes"
	}
	return WithCode(CodeTryAgain, fmt.Errorf("%w at %s: %w (%s)", ErrUnreachable, socket, err, hint))
}

// engineError turns an answer that is no success into the engine's own error.
func engineError(socket string, status int, body []byte) error {
	var e types.Error
	if err := json.Unmarshal(body, &e); err != nil || e.Msg == "" {
		return fmt.Errorf("%s answered status %d without a CNI error: is it dhcp-engine that listens there?", socket, status)
	}
	return &e
}
