package ovnnb

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Auto as address looks for the database where OVN-Kubernetes has it on a node.
const Auto = "auto"

// autoSockets are the sockets of Auto, the first that is there counts:
// OVN-Kubernetes with a zone for each node (interconnect), and with one database
// for all, whose socket is on the control plane's nodes only.
var autoSockets = []string{
	"/run/ovn-ic/ovnnb_db.sock",
	"/var/run/ovn-ic/ovnnb_db.sock",
	"/run/ovn/ovnnb_db.sock",
	"/var/run/ovn/ovnnb_db.sock",
}

// Config is what Ports is told once.
type Config struct {
	// Address is Auto, or what ovn-nbctl takes with --db: unix:PATH, tcp:HOST:PORT
	// or ssl:HOST:PORT, several separated by commas. Of several the leader of the
	// cluster is used.
	Address string
	// Root stands before the sockets of Auto, for a file system that is not the
	// node's own.
	Root string
	// TLS are the files for ssl:, read anew for every connection.
	TLS TLS
	// Log is told what people should know; nil discards it.
	Log *slog.Logger
	// Metrics is where the metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}

// TLS are files in PEM.
type TLS struct {
	// CA has the certificates that a server's certificate must come from.
	CA string
	// Certificate and Key are our own.
	Certificate, Key string
}

// addresses takes cfg.Address apart; nil for Auto.
func (cfg Config) addresses() ([]string, error) {
	if cfg.Address == Auto {
		return nil, nil
	}
	list := strings.Split(cfg.Address, ",")
	for _, a := range list {
		kind, rest, _ := strings.Cut(a, ":")
		switch {
		case rest == "" || kind != "unix" && kind != "tcp" && kind != "ssl":
			return nil, fmt.Errorf("north database %q: is none of %s, unix:PATH, tcp:HOST:PORT, ssl:HOST:PORT", a, Auto)
		case kind == "ssl" && (cfg.TLS.CA == "" || cfg.TLS.Certificate == "" || cfg.TLS.Key == ""):
			return nil, fmt.Errorf("north database %q: ssl: needs CA, certificate and key", a)
		}
	}
	return list, nil
}

// load reads the files. Who answers is known by the CA alone, as OVN's own programs
// have it: its certificates name no host.
func (f TLS) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate for the north database: %w", err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("certificates of the north database: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificates of the north database: %s holds none", f.CA)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		// Go checks chain and name together; VerifyConnection checks the chain.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("the server showed no certificate")
			}
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots: roots, Intermediates: between,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
			})
			return err
		},
	}, nil
}
