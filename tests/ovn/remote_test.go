package ovn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

// bare is a port in a database that nobody reads.
func bare(t testing.TB, d *ovn.Database, pod string) (ovn.PortSpec, engine.Attachment) {
	t.Helper()
	p := ovn.PortSpec{
		Network: netName, NAD: nad, Namespace: "shop", Pod: pod, UID: "uid-" + pod, MAC: randomMAC(t),
	}
	d.Transact(t, []ovn.PortSpec{p})
	return p, attachmentOf(&rig.Sandbox{ID: "c-" + pod}, p, ifName)
}

func awaitAddresses(t testing.TB, d *ovn.Database, p ovn.PortSpec, want string) {
	t.Helper()
	ovn.Await(t, "addresses of "+p.Name(), func() (bool, string) {
		out := d.NB(t, "--bare", "--columns=addresses", "list", "logical_switch_port", p.Name())
		return out == want, out
	})
}

// Of several servers the leader is used, and the next one when it is no longer
// there.
func TestClusterLeader(t *testing.T) {
	t.Parallel()
	all := ovn.StartCluster(t, rig.NewNetns(t, "db"), 3)
	leader := all[0]
	if !leader.Leads(t) {
		t.Fatal("the first server does not lead: this shows nothing")
	}
	p, a := bare(t, leader, "web-0")
	followers := startWriter(t, ovnnb.Config{Address: all[1].Address + "," + all[2].Address})
	w := startWriter(t, ovnnb.Config{Address: all[1].Address + "," + leader.Address + "," + all[2].Address})
	must(t, "publish", w.Publish(patient(t), leaseOf(a, p.MAC, "10.77.0.50", engine.Container, network.PortSecurityMAC)))
	awaitAddresses(t, leader, p, p.MAC.String()+" 10.77.0.50")
	w.log.Await(t, "connection to the leader", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "connected to") && strings.Contains(line, leader.Address)
	})
	if err := followers.Limited(); err == nil || !strings.Contains(err.Error(), "does not lead") {
		t.Errorf("a writer that knows followers only: %v", err)
	}
	leader.Kill(t)
	ovn.Await(t, "another leader", func() (bool, string) { return all[1].Leads(t) || all[2].Leads(t), "none" })
	followers.awaitLimited(t, false)
	// Whether this very call waits long enough does not matter.
	if err := w.Publish(patient(t), leaseOf(a, p.MAC, "10.77.0.51", engine.Container, network.PortSecurityMAC)); err != nil {
		t.Logf("publish right after the leader's end: %v", err)
	}
	awaitAddresses(t, all[1], p, p.MAC.String()+" 10.77.0.51")
}

const envInside = "DHCP_META_TEST_INSIDE"

// A database over TLS: our certificate is shown, the server's is checked.
func TestTLS(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	n := rig.NewNetns(t, "db")
	dir := t.TempDir()
	ca, other := newCA(t, dir, "ca"), newCA(t, dir, "other")
	ca.issue(t, dir, "server")
	ca.issue(t, dir, "client")
	other.issue(t, dir, "stranger")
	file := func(name string) string { return filepath.Join(dir, name) }
	text, err := os.ReadFile(ovn.Schema)
	must(t, "schema", err)
	d := ovn.StartDatabase(t, n, text, "--remote=pssl:6641:127.0.0.1",
		"--private-key="+file("server.key"), "--certificate="+file("server.crt"), "--ca-cert="+file("ca.crt"))
	p, _ := bare(t, d, "web-0")
	inside := n.Start(t, "client in "+n.Name, func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTLSInside$", "-test.v")
		cmd.Env = append(os.Environ(), envInside+"="+dir+","+p.MAC.String())
		return cmd
	}())
	if code := inside.AwaitExit(t); code != 0 || !strings.Contains(strings.Join(inside.Lines.Since(0), "\n"), "PASS: TestTLSInside") {
		t.Errorf("the client ended with %d:\n%s", code, strings.Join(inside.Lines.Since(0), "\n"))
	}
	awaitAddresses(t, d, p, p.MAC.String()+" 10.77.0.50")
}

// TestTLSInside is TestTLS's client: sockets belong to the namespace of the process
// that opens them.
func TestTLSInside(t *testing.T) {
	dir, macText, ok := strings.Cut(os.Getenv(envInside), ",")
	if !ok {
		t.Skip("it is a part of TestTLS")
	}
	mac, err := net.ParseMAC(macText)
	must(t, "MAC", err)
	p := ovn.PortSpec{Namespace: "shop", Pod: "web-0", UID: "uid-web-0", NAD: nad, MAC: mac}
	lease := leaseOf(attachmentOf(&rig.Sandbox{ID: "c1"}, p, ifName), mac, "10.77.0.50", engine.Container, network.PortSecurityMAC)
	const address = "ssl:127.0.0.1:6641"
	files := func(ca, us string) ovnnb.TLS {
		return ovnnb.TLS{CA: filepath.Join(dir, ca+".crt"), Certificate: filepath.Join(dir, us+".crt"), Key: filepath.Join(dir, us+".key")}
	}
	for _, row := range []struct {
		name string
		tls  ovnnb.TLS
		err  string
	}{
		{"a server of another CA", files("other", "client"), "certificate signed by unknown authority"},
		{"a certificate of another CA", files("ca", "stranger"), "is away"},
		{"a file that is missing", files("ca", "nobody"), "nobody.crt"},
	} {
		w := startWriter(t, ovnnb.Config{Address: address, TLS: row.tls})
		if err := w.Publish(patient(t), lease); err == nil || !strings.Contains(err.Error(), row.err) {
			t.Errorf("%s: %v, want %q", row.name, err, row.err)
		}
	}
	w := startWriter(t, ovnnb.Config{Address: address, TLS: files("ca", "client")})
	must(t, "publish", w.Publish(patient(t), lease))
}

// authority issues certificates as ovs-pki does: for a name, not for a host.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t testing.TB, dir, name string) *authority {
	t.Helper()
	key := newKey(t)
	cert := certificate(name, true)
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	must(t, "certificate", err)
	writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
	return &authority{cert, key}
}

func (a *authority) issue(t testing.TB, dir, name string) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, certificate(name, false), a.cert, key.Public(), a.key)
	must(t, "certificate", err)
	writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, "key", err)
	writePEM(t, filepath.Join(dir, name+".key"), "PRIVATE KEY", private)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, "key", err)
	return key
}

func certificate(name string, isCA bool) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	must(t, fmt.Sprintf("write %s", path), os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
