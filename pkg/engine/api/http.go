package api

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The client speaks HTTP/1.1 by itself. Linking net/http makes the start of a
// static program a quarter slower (its own initialisation and that of crypto/tls),
// the plugin starts once for every interface of every pod, and what it needs of
// HTTP is a page: one request a connection, a length with every body.

const (
	// maxHeader bounds the status line and the header of an answer, maxBody its
	// body: a list of 10,000 attachments has some 6 MB.
	maxHeader = 16 << 10
	maxBody   = 64 << 20
)

// errProtocol says that the answer is not what our server sends.
var errProtocol = errors.New("unexpected answer")

// encodeRequest returns a whole request. method and path are ours, path is
// escaped: neither can hold a line break.
func encodeRequest(method, path string, body []byte) []byte {
	var b bytes.Buffer
	// A Host is required (RFC 9112, 3.2), whatever it is: there is one host here.
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: dhcp-engine\r\nConnection: close\r\n", method, path)
	if body != nil {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

// readResponse reads one answer. It accepts what our server sends and little
// else: no interim answers, no transfer codings, no folded header lines, a
// Content-Length wherever a body may be. An answer that ends early is the error
// of the reader, io.ErrUnexpectedEOF for a plain end; one that is wrong is
// errProtocol.
func readResponse(r io.Reader) (status int, body []byte, err error) {
	head := &io.LimitedReader{R: r, N: maxHeader}
	br := bufio.NewReader(head)
	line, err := readLine(br, head)
	if err != nil {
		return 0, nil, err
	}
	if status, err = parseStatus(line); err != nil {
		return 0, nil, err
	}
	length := -1
	for {
		line, err := readLine(br, head)
		if err != nil {
			return 0, nil, err
		}
		if line == "" {
			break
		}
		if length, err = parseHeader(line, length); err != nil {
			return 0, nil, err
		}
	}
	switch {
	case status == 204 && length <= 0: // by definition without a body (RFC 9110, 15.3.5)
		return status, nil, nil
	case status == 204:
		return 0, nil, fmt.Errorf("%w: status 204 with a body", errProtocol)
	case length < 0:
		return 0, nil, fmt.Errorf("%w: no Content-Length", errProtocol)
	}
	head.N = maxBody // the reader below has part of the body already
	body, err = io.ReadAll(io.LimitReader(br, int64(length)))
	if err != nil {
		return 0, nil, err
	}
	if len(body) < length {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return status, body, nil
}

// readLine returns a line without its end. limit is the reader under br.
func readLine(br *bufio.Reader, limit *io.LimitedReader) (string, error) {
	line, err := br.ReadString('\n')
	switch {
	case err == io.EOF && limit.N <= 0:
		return "", fmt.Errorf("%w: header over %d bytes", errProtocol, maxHeader)
	case err == io.EOF:
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	}
	line, ok := strings.CutSuffix(line, "\r\n")
	if !ok {
		return "", fmt.Errorf("%w: line %.40q does not end in CR LF", errProtocol, line)
	}
	return line, nil
}

// parseStatus reads "HTTP/1.1 200 OK" (RFC 9112, 4).
func parseStatus(line string) (int, error) {
	rest, ok := strings.CutPrefix(line, "HTTP/1.1 ")
	code, _, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(code, 10, 16)
	if !ok || err != nil || len(code) != 3 || n < 200 || n > 599 {
		return 0, fmt.Errorf("%w: %.40q is no final status line of HTTP/1.1", errProtocol, line)
	}
	return int(n), nil
}

// parseHeader returns the length that line gives, or length when it is another
// header, and refuses what would make the length mean something else.
func parseHeader(line string, length int) (int, error) {
	name, value, ok := strings.Cut(line, ":")
	if !ok || name == "" || strings.ContainsAny(name, " \t") {
		return 0, fmt.Errorf("%w: %.40q is no header line", errProtocol, line)
	}
	value = strings.Trim(value, " \t")
	switch {
	case strings.EqualFold(name, "Transfer-Encoding"):
		return 0, fmt.Errorf("%w: transfer coding %.40q", errProtocol, value)
	case !strings.EqualFold(name, "Content-Length"):
		return length, nil
	case length >= 0:
		return 0, fmt.Errorf("%w: two Content-Length headers", errProtocol)
	}
	// ParseUint takes neither sign nor spaces.
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil || n > maxBody {
		return 0, fmt.Errorf("%w: Content-Length %.40q", errProtocol, value)
	}
	return int(n), nil
}
