package kube

import (
	"context"
	_ "embed"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Where the API server is, for nodes and clients alike.
const (
	APIHost = "172.30.0.1"
	apiPort = "6443"
	apiURL  = "https://" + APIHost + ":" + apiPort
	apiMAC  = "0a:00:ac:1e:00:01"
)

// startPatience is how long the control plane may take to come up; a machine with
// much else to do has taken 13 seconds.
const startPatience = 2 * time.Minute

//go:embed manifests/audit-policy.yaml
var auditPolicy []byte

//go:embed manifests/crds.yaml
var crds string

//go:embed manifests/multus.yaml
var multusRBAC string

// Cluster is a running control plane.
type Cluster struct {
	// Net is the namespace of etcd and kube-apiserver.
	Net *rig.Netns
	// Client, NADs and Dynamic speak as cluster admin.
	Client  kubernetes.Interface
	NADs    nadclient.Interface
	Dynamic dynamic.Interface

	bin    string
	folder string
	pki    *pki
	admin  rest.Config
	api    *rig.Process
	nodes  atomic.Int64
	names  atomic.Int64

	install   sync.Mutex
	installed bool
}

// Start starts a cluster that ends with the test. A test that does not stop the API
// server wants Shared.
func Start(t testing.TB) *Cluster {
	t.Helper()
	rig.Need(t)
	bin, err := rig.ToolCache("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Net: rig.NewNetns(t, "api"), bin: bin, folder: t.TempDir()}
	// A bridge without a MAC of its own takes one of its ports', and another one when
	// ports come and go: connections of all nodes would hang until their ARP follows.
	c.Net.IP(t, "link", "add", "br0", "address", apiMAC, "type", "bridge")
	c.Net.IP(t, "link", "set", "br0", "up")
	c.Net.IP(t, "addr", "add", APIHost+"/16", "dev", "br0")
	c.pki = newPKI(t, c.folder)
	c.pki.server(t, "server", net.ParseIP(APIHost), net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1))
	c.pki.kubeletClient(t)
	if err := os.WriteFile(c.file("audit-policy.yaml"), auditPolicy, 0o600); err != nil {
		t.Fatal(err)
	}
	c.connect(t)

	c.Net.Start(t, "etcd", exec.Command(filepath.Join(bin, "etcd"),
		"--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380"))
	c.StartAPI(t)
	c.Apply(t, crds)
	c.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	c.ServiceAccount(t, "kube-system", "multus")
	c.Apply(t, multusRBAC)
	return c
}

func (c *Cluster) file(name string) string { return filepath.Join(c.folder, name) }

// connect makes the clients; they need no server yet.
func (c *Cluster) connect(t testing.TB) {
	t.Helper()
	cert, key := c.pki.client(t, "admin", "system:masters")
	c.admin = rest.Config{
		Host:            apiURL,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.CA, CertData: cert, KeyData: key},
		Dial:            c.dial,
		UserAgent:       "test",
		QPS:             -1,
	}
	var err error
	if c.Client, err = kubernetes.NewForConfig(c.REST()); err != nil {
		t.Fatal(err)
	}
	if c.NADs, err = nadclient.NewForConfig(c.REST()); err != nil {
		t.Fatal(err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.REST()); err != nil {
		t.Fatal(err)
	}
	config := kubeconfig(t, c.pki.CA, func(u *user) { u.ClientCertificateData, u.ClientKeyData = cert, key })
	if err := os.WriteFile(c.file("admin.kubeconfig"), config, 0o600); err != nil {
		t.Fatal(err)
	}
}

// dial connects from inside the cluster's namespace.
func (c *Cluster) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = c.Net.Do(func() error {
		var err error
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// REST is the configuration of a client as cluster admin.
func (c *Cluster) REST() *rest.Config { return rest.CopyConfig(&c.admin) }

// StartAPI starts the API server and waits until it is ready.
func (c *Cluster) StartAPI(t testing.TB) {
	t.Helper()
	c.api = c.Net.Start(t, "kube-apiserver", exec.Command(filepath.Join(c.bin, "kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--advertise-address="+APIHost, "--secure-port="+apiPort,
		"--tls-cert-file="+c.pki.file("server.crt"), "--tls-private-key-file="+c.pki.file("server.key"),
		"--client-ca-file="+c.pki.file("ca.crt"), "--cert-dir="+c.file("certs"),
		"--service-account-issuer="+issuer,
		"--service-account-key-file="+c.pki.file("accounts.key"),
		"--service-account-signing-key-file="+c.pki.file("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--kubelet-client-certificate="+c.pki.file("kubelet-client.crt"), "--kubelet-client-key="+c.pki.file("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--audit-policy-file="+c.file("audit-policy.yaml"), "--audit-log-path="+c.file("audit.log"),
		"--audit-log-mode=blocking-strict",
	))
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	// Readiness has no event to wait for from outside.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-c.api.Exited():
			t.Fatalf("kube-apiserver has ended:\n%s", strings.Join(c.api.Lines.Since(0), "\n"))
		case <-ctx.Done():
			t.Fatalf("kube-apiserver is not ready after %v: %v\n%s", startPatience, err, strings.Join(c.api.Lines.Since(0), "\n"))
		}
	}
}

// StopAPI kills the API server. What it had stored stays, and so do etcd and the
// address: a client finds its port closed until StartAPI.
func (c *Cluster) StopAPI(t testing.TB) {
	t.Helper()
	c.api.Kill(t)
}

// tell shows a failed test what the API server said.
func (c *Cluster) tell(t testing.TB) {
	mark := c.api.Lines.Len()
	t.Cleanup(func() {
		if t.Failed() {
			lines := c.api.Lines.Since(mark)
			t.Logf("kube-apiserver said:\n\t%s", strings.Join(lines[max(0, len(lines)-20):], "\n\t"))
		}
	})
}

// Apply applies manifests (documents of YAML) as kubectl does.
func (c *Cluster) Apply(t testing.TB, manifests string) string {
	t.Helper()
	return c.Kubectl(t, manifests, "apply", "--server-side", "-f", "-")
}

// Kubectl runs kubectl as cluster admin; it must succeed.
func (c *Cluster) Kubectl(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TryKubectl is Kubectl for a command that may fail.
func (c *Cluster) TryKubectl(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.bin, "kubectl"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	return c.TryClient(cmd)
}

// TryClient runs any client of the API as cluster admin, with kubectl in its PATH.
func (c *Cluster) TryClient(cmd *exec.Cmd) (string, error) {
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.file("admin.kubeconfig"), "HOME="+c.folder, "PATH="+c.bin+":"+os.Getenv("PATH"))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.Net.Do(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}
