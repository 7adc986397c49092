package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
)

// pems writes a certificate that is good for a time, and its key.
func pems(t *testing.T, life time.Duration) ovnnb.TLS {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "engine"}, NotAfter: time.Now().Add(life)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	dir := t.TempDir()
	files := ovnnb.TLS{CA: filepath.Join(dir, "cert"), Certificate: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	must(t, os.WriteFile(files.Certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
	return files
}

func TestFiles(t *testing.T) {
	month := 30 * 24 * time.Hour
	well := pems(t, month)
	finds(t, judgeFiles(well, time.Now()))
	for name, tt := range map[string]struct {
		files ovnnb.TLS
		want  map[ID]Level
	}{
		"over":         {pems(t, -time.Hour), map[ID]Level{OVNCertificate: Error}},
		"over soon":    {pems(t, 24*time.Hour), map[ID]Level{OVNCertificate: Warning}},
		"another key":  {ovnnb.TLS{CA: well.CA, Certificate: well.Certificate, Key: pems(t, month).Key}, map[ID]Level{OVNFiles: Error}},
		"no authority": {ovnnb.TLS{CA: well.Key, Certificate: well.Certificate, Key: well.Key}, map[ID]Level{OVNFiles: Error}},
		"no file":      {ovnnb.TLS{CA: "/nowhere", Certificate: well.Certificate, Key: well.Key}, map[ID]Level{OVNFiles: Error}},
	} {
		t.Run(name, func(t *testing.T) {
			got := judgeFiles(tt.files, time.Now())
			for id, level := range tt.want {
				if levels(got)[id] != level || len(got) != 1 {
					t.Errorf("found %+v, want %v", got, tt.want)
				}
			}
		})
	}
}

// The API server's clock is read from its answers.
func TestClockSkew(t *testing.T) {
	var date atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Date", date.Load().(string)) }))
	defer server.Close()
	for ahead, want := range map[time.Duration][]ID{0: nil, time.Hour: {ClockSkew}, -time.Hour: {ClockSkew}} {
		date.Store(time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		var skew atomic.Int64
		answer, err := (&http.Client{Transport: dated{http.DefaultTransport, &skew}}).Get(server.URL)
		must(t, err)
		answer.Body.Close()
		finds(t, judgeSkew(time.Duration(skew.Load())), want...)
	}
}

// The rights that are asked for are those of the manifests.
func TestRights(t *testing.T) {
	text, err := os.ReadFile("../../manifests/base/rbac.yaml")
	must(t, err)
	granted := map[string]bool{}
	for _, part := range documents(string(text)) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(part), &role); err != nil || role.Kind != "ClusterRole" || role.Name != "dhcp-engine" {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						granted[verb+" "+resource+"."+group] = true
					}
				}
			}
		}
	}
	for _, r := range slices.Concat(rights, objectRights) {
		if name := r.Verb + " " + r.Resource + "." + r.Group; !granted[name] {
			t.Errorf("%s is asked for, and not in the manifests", name)
		}
		delete(granted, r.Verb+" "+r.Resource+"."+r.Group)
	}
	delete(granted, "get configmaps.") // of one name, which doctor itself reads
	for name := range granted {
		t.Errorf("%s is in the manifests, and not asked for", name)
	}
}
