package kube

import (
	"fmt"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// issuer is who signs the tokens of service accounts.
const issuer = "https://kubernetes.default.svc"

type user = clientcmdapi.AuthInfo

// kubeconfig is the text of a kubeconfig with one user.
func kubeconfig(t testing.TB, ca []byte, fill func(*user)) []byte {
	t.Helper()
	u := &user{}
	fill(u)
	b, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"rig": {Server: apiURL, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*user{"rig": u},
		Contexts:       map[string]*clientcmdapi.Context{"rig": {Cluster: "rig", AuthInfo: "rig"}},
		CurrentContext: "rig",
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Kubeconfig is the text of a kubeconfig that carries a token.
func (c *Cluster) Kubeconfig(t testing.TB, token string) []byte {
	t.Helper()
	return kubeconfig(t, c.pki.CA, func(u *user) { u.Token = token })
}

// KubeconfigOf is the text of a kubeconfig whose token is in a file of the node,
// where it may be replaced.
func (c *Cluster) KubeconfigOf(t testing.TB, tokenFile string) []byte {
	t.Helper()
	return kubeconfig(t, c.pki.CA, func(u *user) { u.TokenFile = tokenFile })
}

// AdminKubeconfig is the text of a kubeconfig of the cluster admin.
func (c *Cluster) AdminKubeconfig(t testing.TB) []byte {
	t.Helper()
	return c.UserKubeconfig(t, "admin", "system:masters")
}

// UserKubeconfig is the text of a kubeconfig of any user.
func (c *Cluster) UserKubeconfig(t testing.TB, name string, groups ...string) []byte {
	t.Helper()
	cert, key := c.pki.client(t, name, groups...)
	return kubeconfig(t, c.pki.CA, func(u *user) { u.ClientCertificateData, u.ClientKeyData = cert, key })
}

// CA is the certificate of the cluster's authority as PEM.
func (c *Cluster) CA() []byte { return c.pki.CA }

// As is the configuration of a client with a token.
func (c *Cluster) As(token string) *rest.Config {
	config := c.REST()
	config.CertData, config.KeyData, config.BearerToken = nil, nil, token
	return config
}

// ServiceAccount makes a service account; one that is there already is no error.
func (c *Cluster) ServiceAccount(t testing.TB, namespace, name string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.Client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("create service account %s/%s: %v", namespace, name, err)
	}
}

// Token is a token of a service account. With a pod it is bound to it as the
// kubelet's tokens are: it tells the pod's node, and ends with the pod, though the
// API server takes a token that it has just seen for up to ten seconds longer. The
// API gives no token for less than ten minutes: a shorter one, or one that has
// expired already, is signed here. The server allows clocks a minute, so only -2 minutes
// are over.
func (c *Cluster) Token(t testing.TB, namespace, account string, pod *corev1.Pod, life time.Duration) string {
	t.Helper()
	if life < 10*time.Minute {
		return c.signToken(t, namespace, account, pod, life)
	}
	seconds := int64(life.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
		}
	}
	got, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create a token of %s/%s: %v", namespace, account, err)
	}
	return got.Status.Token
}

// signToken makes a token with the API server's own key.
func (c *Cluster) signToken(t testing.TB, namespace, account string, pod *corev1.Pod, life time.Duration) string {
	t.Helper()
	object, err := c.Client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), account, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reference := func(name string, uid any) rig.Object { return rig.Object{"name": name, "uid": uid} }
	claims := rig.Object{"namespace": namespace, "serviceaccount": reference(account, object.UID)}
	if pod != nil {
		claims["pod"] = reference(pod.Name, pod.UID)
		if pod.Spec.NodeName != "" {
			claims["node"] = rig.Object{"name": pod.Spec.NodeName}
		}
	}
	begin := time.Now().Add(min(0, life) - time.Minute)
	return c.pki.jwt(t, rig.Object{
		"iss": issuer, "aud": []string{issuer}, "sub": "system:serviceaccount:" + namespace + ":" + account,
		"iat": begin.Unix(), "nbf": begin.Unix(), "exp": time.Now().Add(life).Unix(),
		"kubernetes.io": claims,
	})
}

// AwaitAccess waits until a service account may do something. RBAC is read by the
// server from a cache of its own, so a binding that was just made may not count yet.
func (c *Cluster) AwaitAccess(t testing.TB, namespace, account string, what authorizationv1.ResourceAttributes) {
	t.Helper()
	user := fmt.Sprintf("system:serviceaccount:%s:%s", namespace, account)
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &what}}
	deadline := time.After(rig.Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		got, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s may not %s %s after %v: %s", user, what.Verb, what.Resource, rig.Patience, got.Status.Reason)
		}
	}
}
