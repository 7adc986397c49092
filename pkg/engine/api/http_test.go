package api

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// answers are texts and what becomes of them; the fuzz target begins with them.
var answers = []struct {
	name   string
	text   string
	status int
	body   string
	err    error
}{
	{"OK with a body", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", nil},
	{"OK other headers", "HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 10:00:00 GMT\r\ncontent-length:\t2 \r\nConnection: close\r\n\r\n{}", 200, "{}", nil},
	{"OK empty body", "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", 500, "", nil},
	{"OK no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", nil},
	{"OK no reason phrase", "HTTP/1.1 204 \r\n\r\n", 204, "", nil},
	{"OK more than the length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}trailing", 200, "{}", nil},
	{"OK body larger than the bound of the header", "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000), 200, strings.Repeat("x", 100000), nil},

	{"bad nothing", "", 0, "", io.ErrUnexpectedEOF},
	{"bad ends in the status line", "HTTP/1.1 200", 0, "", io.ErrUnexpectedEOF},
	{"bad ends in the header", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", 0, "", io.ErrUnexpectedEOF},
	{"bad ends in the body", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", 0, "", io.ErrUnexpectedEOF},
	{"bad other protocol", "SSH-2.0-OpenSSH_9.2\r\n", 0, "", errProtocol},
	{"bad other version", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 0, "", errProtocol},
	{"bad status", "HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\n{}", 0, "", errProtocol},
	{"bad sign in the status", "HTTP/1.1 +20 OK\r\nContent-Length: 2\r\n\r\n{}", 0, "", errProtocol},
	{"bad interim answer", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 0, "", errProtocol},
	{"bad no length", "HTTP/1.1 200 OK\r\n\r\n{}", 0, "", errProtocol},
	{"bad two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 0, "", errProtocol},
	{"bad negative length", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}", 0, "", errProtocol},
	{"bad length over the bound", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}", 0, "", errProtocol},
	{"bad chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 0, "", errProtocol},
	{"bad no content with a body", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}", 0, "", errProtocol},
	{"bad bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", 0, "", errProtocol},
	{"bad folded header", "HTTP/1.1 200 OK\r\nX: a\r\n b: c\r\nContent-Length: 2\r\n\r\n{}", 0, "", errProtocol},
	{"bad header without a colon", "HTTP/1.1 200 OK\r\nContent-Length\r\n\r\n{}", 0, "", errProtocol},
	{"bad endless header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHeader), 0, "", errProtocol},
	{"bad endless headers", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", maxHeader/6), 0, "", errProtocol},
}

func TestReadResponse(t *testing.T) {
	for _, tt := range answers {
		t.Run(tt.name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"at once":      strings.NewReader(tt.text),
				"byte by byte": iotest.OneByteReader(strings.NewReader(tt.text)),
			} {
				status, body, err := readResponse(r)
				if !errors.Is(err, tt.err) {
					t.Fatalf("%s: error is %v, want %v", how, err, tt.err)
				}
				if status != tt.status || string(body) != tt.body {
					t.Errorf("%s: answer is %d %.40q, want %d %.40q", how, status, body, tt.status, tt.body)
				}
			}
		})
	}
}

func TestReadResponseError(t *testing.T) {
	broken := errors.New("connection reset")
	for _, text := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"} {
		r := io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))
		if _, _, err := readResponse(r); !errors.Is(err, broken) {
			t.Errorf("after %q: error is %v, want %v", text, err, broken)
		}
	}
}

func FuzzResponse(f *testing.F) {
	for _, tt := range answers {
		if len(tt.text) < 1000 {
			f.Add(tt.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		status, body, err := readResponse(strings.NewReader(text))
		if err != nil {
			if status != 0 || body != nil {
				t.Errorf("error %v comes with an answer: %d %q", err, status, body)
			}
			return
		}
		if status < 200 || status > 599 {
			t.Errorf("status is %d", status)
		}
		// What was accepted says the same when it is written out plainly.
		plain := fmt.Sprintf("HTTP/1.1 %d x\r\n", status)
		if status != 204 {
			plain += fmt.Sprintf("Content-Length: %d\r\n", len(body))
		}
		status2, body2, err := readResponse(strings.NewReader(plain + "\r\n" + string(body)))
		if err != nil || status2 != status || string(body2) != string(body) {
			t.Errorf("answer %d %q, written again: %d %q, %v", status, body, status2, body2, err)
		}
	})
}

func TestEncodeRequest(t *testing.T) {
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"OK without a body", encodeRequest("GET", "/healthz", nil), "GET /healthz HTTP/1.1\r\nHost: dhcp-engine\r\nConnection: close\r\n\r\n"},
		{"OK with a body", encodeRequest("PUT", "/x", []byte("{}")), "PUT /x HTTP/1.1\r\nHost: dhcp-engine\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, string(tt.got)); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAttachmentPath(t *testing.T) {
	for _, tt := range []struct{ name, container, ifname, want string }{
		{"OK plain", "0a1b", "net1", "/v1/attachments/0a1b/net1"},
		{"OK legal for the kernel, not for a path", "0a1b", "a?b#c%d", "/v1/attachments/0a1b/a%3Fb%23c%25d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := attachmentPath(AttachmentID{tt.container, tt.ifname}); got != tt.want {
				t.Errorf("path is %s, want %s", got, tt.want)
			}
		})
	}
}

func TestWithCode(t *testing.T) {
	plain := errors.New("plain")
	for _, tt := range []struct {
		name string
		err  error
		want uint
	}{
		{"OK plain", plain, CodeInternal},
		{"OK coded", WithCode(CodeConfig, plain), CodeConfig},
		{"OK coded below", fmt.Errorf("above: %w", WithCode(CodeConfig, plain)), CodeConfig},
		{"OK a CNI error has one", WithCode(CodeTryAgain, fmt.Errorf("above: %w%w", types.NewError(CodeEnv, "m", ""), plain)), CodeEnv},
		{"OK the first code stays", WithCode(CodeTryAgain, WithCode(CodeConfig, plain)), CodeConfig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := CodeOf(tt.err); got != tt.want {
				t.Errorf("code is %d, want %d", got, tt.want)
			}
			if !errors.Is(tt.err, plain) {
				t.Errorf("%v does not wrap %v", tt.err, plain)
			}
		})
	}
	if err := WithCode(CodeConfig, nil); err != nil {
		t.Errorf("WithCode(nil) = %v", err)
	}
}
