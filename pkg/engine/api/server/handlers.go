package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

var errUnknown = errors.New("dhcp-engine has no such call")

func (s *Server) prepareAttachment(r *http.Request, body []byte) (any, error) {
	req, err := attachmentRequest(r, body)
	if err != nil {
		return nil, err
	}
	return nil, s.backend.Prepare(r.Context(), req)
}

func (s *Server) marked(r *http.Request, body []byte) (any, error) {
	req, err := attachmentRequest(r, body)
	if err != nil {
		return nil, err
	}
	marked, err := s.backend.Marked(r.Context(), req)
	return api.Mark{Marked: marked}, err
}

func (s *Server) attach(r *http.Request, body []byte) (any, error) {
	req, err := attachmentRequest(r, body)
	if err != nil {
		return nil, err
	}
	return s.backend.Attach(r.Context(), req)
}

func (s *Server) check(r *http.Request, body []byte) (any, error) {
	req, err := attachmentRequest(r, body)
	if err != nil {
		return nil, err
	}
	return s.backend.Check(r.Context(), req)
}

func (s *Server) detachAttachment(r *http.Request, _ []byte) (any, error) {
	id, err := attachmentID(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), s.detach)
	defer cancel()
	err = s.backend.Detach(ctx, id)
	if err != nil && r.Context().Err() != nil {
		s.log.Warn("detach failed after its caller had gone", "attachment", id.String(), "err", err)
	}
	return nil, err
}

func (s *Server) renew(r *http.Request, _ []byte) (any, error)  { return s.ask(r, false) }
func (s *Server) rebind(r *http.Request, _ []byte) (any, error) { return s.ask(r, true) }

func (s *Server) ask(r *http.Request, rebind bool) (any, error) {
	id, err := attachmentID(r)
	if err != nil {
		return nil, err
	}
	return s.backend.Renew(r.Context(), id, rebind)
}

func (s *Server) release(r *http.Request, _ []byte) (any, error) {
	id, err := attachmentID(r)
	if err != nil {
		return nil, err
	}
	return nil, s.backend.Release(r.Context(), id)
}

func (s *Server) probe(r *http.Request, body []byte) (any, error) {
	var req api.ProbeRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	if req.Netns == "" || req.IfName == "" {
		return nil, badRequest(errors.New("probe: netns and ifName are required"))
	}
	if req.Timeout < 0 || req.Timeout > api.MaxProbe {
		return nil, badRequest(fmt.Errorf("probe: timeout is %v, not between 0 and %v", req.Timeout, api.MaxProbe))
	}
	return s.backend.Probe(r.Context(), req)
}

func (s *Server) list(r *http.Request, _ []byte) (any, error) {
	l, err := s.backend.List(r.Context())
	if l == nil {
		l = []api.Status{} // [] rather than null, for people and scripts
	}
	return l, err
}

func (s *Server) sweep(r *http.Request, body []byte) (any, error) {
	var sw api.Sweep
	if err := decode(body, &sw); err != nil {
		return nil, err
	}
	// Without this, half a request would end all attachments of the network ""
	// or, without the list, of a real one.
	if sw.Network == "" || sw.Valid == nil {
		return nil, badRequest(errors.New("sweep: network and valid are required"))
	}
	return nil, s.backend.Sweep(r.Context(), sw)
}

func (s *Server) ready(*http.Request, []byte) (any, error) {
	return nil, api.WithCode(api.CodeNotReady, s.backend.Ready())
}

func (s *Server) status(*http.Request, []byte) (any, error) {
	if err := s.backend.Ready(); err != nil {
		return nil, api.WithCode(api.CodeNotReady, err)
	}
	// Whatever code its cause has, an ADD works.
	if err := s.backend.Limited(); err != nil {
		return nil, &types.Error{Code: api.CodeLimited, Msg: err.Error()}
	}
	return nil, nil
}

func (s *Server) healthy(*http.Request, []byte) (any, error) { return nil, nil }

func unknown(r *http.Request, _ []byte) (any, error) {
	return nil, fmt.Errorf("%w: %s %s: are plugin and engine of the same release?", errUnknown, r.Method, r.URL.Path)
}

// attachmentID returns the attachment that the path names. Its parts become part
// of file names and logs, so it holds them to the rules of CNI.
func attachmentID(r *http.Request) (api.AttachmentID, error) {
	id := api.AttachmentID{ContainerID: r.PathValue("container"), IfName: r.PathValue("ifname")}
	if err := utils.ValidateContainerID(id.ContainerID); err != nil {
		return id, err
	}
	if err := utils.ValidateInterfaceName(id.IfName); err != nil {
		return id, err
	}
	return id, nil
}

// attachmentRequest decodes body, which must be about the attachment in the path.
func attachmentRequest(r *http.Request, body []byte) (api.Request, error) {
	var req api.Request
	id, err := attachmentID(r)
	if err != nil {
		return req, err
	}
	if err := decode(body, &req); err != nil {
		return req, err
	}
	if req.AttachmentID != id {
		return req, badRequest(fmt.Errorf("the path is about %s, the body about %s", id, req.AttachmentID))
	}
	if req.Timeout < 0 {
		return req, badRequest(fmt.Errorf("timeout is negative: %v", req.Timeout))
	}
	return req, nil
}

// decode takes one JSON value and nothing else: a key that this engine does not
// know is a wish that it would not fulfil.
func decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badRequest(fmt.Errorf("decode the request: %w", err))
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest(errors.New("decode the request: something follows the JSON value"))
	}
	return nil
}

func badRequest(err error) error { return api.WithCode(types.ErrDecodingFailure, err) }
