package kube

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki is the certificate authority of a cluster, and what it has signed. Files of
// it are what the server's flags name.
type pki struct {
	folder string
	ca     *x509.Certificate
	key    crypto.Signer
	serial int64
	// accounts signs the tokens of service accounts.
	accounts *ecdsa.PrivateKey
	// CA is the authority's certificate as PEM.
	CA []byte
}

func newPKI(t testing.TB, folder string) *pki {
	t.Helper()
	p := &pki{folder: folder, key: newKey(t), accounts: newKey(t)}
	p.ca = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rig"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	p.CA = p.sign(t, p.ca, p.key.Public())
	p.write(t, "ca.crt", p.CA)
	p.write(t, "accounts.key", keyPEM(t, p.accounts))
	return p
}

func (p *pki) file(name string) string { return filepath.Join(p.folder, name) }

// server makes NAME.crt and NAME.key for a server at the addresses.
func (p *pki) server(t testing.TB, name string, addrs ...net.IP) {
	t.Helper()
	cert, key := p.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: addrs,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	p.write(t, name+".crt", cert)
	p.write(t, name+".key", key)
}

// kubeletClient makes the files by which the API server asks kubelets.
func (p *pki) kubeletClient(t testing.TB) {
	t.Helper()
	cert, key := p.client(t, "kube-apiserver", "system:masters")
	p.write(t, "kubelet-client.crt", cert)
	p.write(t, "kubelet-client.key", key)
}

// client returns certificate and key of a user of the API.
func (p *pki) client(t testing.TB, user string, groups ...string) (cert, key []byte) {
	t.Helper()
	return p.issue(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (p *pki) issue(t testing.TB, cert *x509.Certificate) (certPEM, keyAsPEM []byte) {
	t.Helper()
	p.serial++
	cert.SerialNumber = big.NewInt(p.serial + 1)
	cert.NotBefore, cert.NotAfter = p.ca.NotBefore, p.ca.NotAfter
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	key := newKey(t)
	return p.sign(t, cert, key.Public()), keyPEM(t, key)
}

func (p *pki) sign(t testing.TB, cert *x509.Certificate, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, p.ca, key, p.key)
	if err != nil {
		t.Fatalf("sign a certificate: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// jwt is a signed token with these claims (RFC 7519, RFC 7518 section 3.4).
func (p *pki) jwt(t testing.TB, claims any) string {
	t.Helper()
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"ES256"}`)) + "." + encode(body)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, p.accounts, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + encode(signature)
}

func (p *pki) write(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(p.file(name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func keyPEM(t testing.TB, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
