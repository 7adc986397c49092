package rig

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Metrics reads the metrics that a program serves at an address in the namespace, each by
// its name with labels.
func (n *Netns) Metrics(t testing.TB, address string) map[string]float64 {
	t.Helper()
	var conn net.Conn
	err := n.Do(func() (err error) {
		conn, err = net.Dial("tcp", address)
		return err
	})
	if err != nil {
		t.Fatalf("ask for metrics: %v", err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("read metrics: %v", err)
	}
	defer answer.Body.Close()
	all := map[string]float64{}
	for in := bufio.NewScanner(answer.Body); in.Scan(); {
		if name, value, ok := strings.Cut(in.Text(), " "); ok && !strings.HasPrefix(name, "#") {
			all[name], _ = strconv.ParseFloat(value, 64) // a name with a space in a label is none of ours
		}
	}
	return all
}
