package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
)

// soonOver is how long before its end a certificate is told of.
const soonOver = 7 * 24 * time.Hour

func (e *examination) checkOVN(ctx context.Context) (found []Finding, well string) {
	var networks []string
	for _, d := range e.networks() {
		if d.ours && d.ovn() {
			networks = append(networks, d.name)
		}
	}
	cfg := e.cfg.Northbound
	if cfg.Address == "" {
		return judgeOVNOff(networks), ""
	}
	if cfg.TLS != (ovnnb.TLS{}) {
		if found = judgeFiles(cfg.TLS, time.Now()); len(found) > 0 {
			return found, ""
		}
	}
	address, err := ovnnb.Reach(ctx, cfg)
	if err == nil {
		return nil, "north database at " + address
	}
	return judgeOVNAway(cfg.Address, networks, err), ""
}

func judgeOVNOff(networks []string) []Finding {
	if len(networks) == 0 {
		return nil
	}
	return []Finding{{OVNOff, Warning, "ports of OVN do not follow leases: a restart of OVN-Kubernetes may pin them to an old address",
		seen("--ovn-nb is off, and %s are networks of OVN-Kubernetes", strings.Join(networks, ", ")),
		"set DHCP_ENGINE_OVN_NB=auto and mount /run/ovn-ic or /run/ovn, as manifests/overlays/ovn-kubernetes does"}}
}

// judgeOVNAway: a node without OVN-Kubernetes has no such socket, and no need of it.
func judgeOVNAway(address string, networks []string, err error) []Finding {
	if address == ovnnb.Auto && len(networks) == 0 {
		return []Finding{{OVNAbsent, Note, "no north database of OVN is here", err.Error(), "nothing, unless OVN-Kubernetes is to be served on this node"}}
	}
	return []Finding{{OVNUnreachable, Error, "OVN's north database cannot be reached, so ports do not follow leases",
		seen("--ovn-nb is %s: %v", address, err),
		"does ovnkube run on this node? mount its whole folder (/run/ovn-ic or /run/ovn), since sockets are made anew; or name the database with --ovn-nb"}}
}

// judgeFiles looks at the files for ssl: before anybody is asked.
func judgeFiles(files ovnnb.TLS, now time.Time) []Finding {
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	if err != nil {
		return []Finding{{OVNFiles, Error, "our certificate for OVN's database cannot be used", err.Error(), "mend --ovn-nb-cert and --ovn-nb-key; the two belong together"}}
	}
	authorities, err := certificates(files.CA)
	if err != nil {
		return []Finding{{OVNFiles, Error, "the certificates that OVN's database must come from cannot be read", err.Error(), "mend --ovn-nb-ca"}}
	}
	all := append([]*x509.Certificate{pair.Leaf}, authorities...)
	first := slices.MinFunc(all, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	how := seen("%s ends %s", cmp.Or(first.Subject.CommonName, "a certificate without a name"), first.NotAfter.Format(time.RFC3339))
	switch left := first.NotAfter.Sub(now); {
	case left <= 0:
		return []Finding{{OVNCertificate, Error, "a certificate for OVN's database is over", how, "have it made anew; the engine reads the files at each connection"}}
	case left < soonOver:
		return []Finding{{OVNCertificate, Warning, "a certificate for OVN's database ends soon", how, "have it made anew; the engine reads the files at each connection"}}
	}
	return nil
}

func certificates(path string) (list []*x509.Certificate, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	return list, nil
}
