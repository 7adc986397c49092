// Package manifests holds the manifests against what Kubernetes reads in them, and
// against the rights that the engine uses.
package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const folder = "../../manifests/base"

// document is one object of a manifest.
type document struct {
	file string
	metav1.TypeMeta
	text []byte
}

// kinds are what may be in a manifest, by apiVersion and kind.
var kinds = map[string]func() any{
	"v1 Namespace":                                                     func() any { return new(corev1.Namespace) },
	"v1 ServiceAccount":                                                func() any { return new(corev1.ServiceAccount) },
	"apps/v1 DaemonSet":                                                func() any { return new(appsv1.DaemonSet) },
	"rbac.authorization.k8s.io/v1 ClusterRole":                         func() any { return new(rbacv1.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding":                  func() any { return new(rbacv1.ClusterRoleBinding) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        func() any { return new(admissionv1.ValidatingAdmissionPolicy) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": func() any { return new(admissionv1.ValidatingAdmissionPolicyBinding) },
	"apiextensions.k8s.io/v1 CustomResourceDefinition":                 func() any { return new(apiextensionsv1.CustomResourceDefinition) },
	"kustomize.config.k8s.io/v1beta1 Kustomization":                    func() any { return new(kustomization) },
}

type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources"`
}

// documents reads all manifests.
func documents(t *testing.T) []document {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	var all []document
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
			d := document{file: filepath.Base(file), text: part}
			if err := yaml.Unmarshal(part, &d.TypeMeta); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all = append(all, d)
		}
	}
	return all
}

// decode reads a document as what it says that it is, strictly.
func (d document) decode(t *testing.T) any {
	t.Helper()
	make, ok := kinds[d.APIVersion+" "+d.Kind]
	if !ok {
		t.Fatalf("%s: kind %q of %q is not known", d.file, d.Kind, d.APIVersion)
	}
	obj := make()
	if err := yaml.UnmarshalStrict(d.text, obj); err != nil {
		t.Errorf("%s: %s: %v", d.file, d.Kind, err)
	}
	return obj
}

// all are the objects of one kind.
func all[T any](t *testing.T) []*T {
	t.Helper()
	var list []*T
	for _, d := range documents(t) {
		if obj, ok := d.decode(t).(*T); ok {
			list = append(list, obj)
		}
	}
	return list
}

// Every document is what it says, without a key that nobody reads.
func TestManifestsAreWellFormed(t *testing.T) {
	for _, d := range documents(t) {
		d.decode(t)
	}
}

func TestKustomizationHasAllFiles(t *testing.T) {
	k := all[kustomization](t)
	if len(k) != 1 {
		t.Fatalf("%d kustomizations", len(k))
	}
	var files []string
	for _, d := range documents(t) {
		if d.Kind != "Kustomization" && !slices.Contains(files, d.file) {
			files = append(files, d.file)
		}
	}
	if diff := cmp.Diff(files, slices.Sorted(slices.Values(k[0].Resources))); diff != "" {
		t.Errorf("(-files +resources):\n%s", diff)
	}
}

// The rights of the engine: each that it uses, with where, and no other.
func TestLeastPrivilege(t *testing.T) {
	want := []string{
		"get pods",      // internal/kube: a pod that is not in the cache; is it gone
		"list pods",     // internal/kube: the pods of the node
		"watch pods",    // internal/kube: the pods of the node
		"patch pods",    // internal/podannotation: the annotation with the address
		"create events", // internal/kube: events on pods
		"patch events",  // internal/kube: an event that repeats is counted up
		"get network-attachment-definitions.k8s.cni.cncf.io",   // internal/kube: one that is not in the cache
		"list network-attachment-definitions.k8s.cni.cncf.io",  // internal/kube: marks and settings
		"watch network-attachment-definitions.k8s.cni.cncf.io", // internal/kube: marks and settings
		"get virtualmachineinstances.kubevirt.io",              // internal/kube: the MAC of a virtual machine
		"get configmaps multus-daemon-config",                  // internal/doctor: where Multus searches for plugins
		// internal/leaseobjects: what is there of this node, and how it should be.
		"list dhcpleases.dhcp-meta.io", "watch dhcpleases.dhcp-meta.io",
		"create dhcpleases.dhcp-meta.io", "patch dhcpleases.dhcp-meta.io", "delete dhcpleases.dhcp-meta.io",
	}
	var got []string
	for _, role := range all[rbacv1.ClusterRole](t) {
		if role.Name == viewRole {
			continue
		}
		if role.AggregationRule != nil {
			t.Errorf("%s takes rules from elsewhere", role.Name)
		}
		for _, rule := range role.Rules {
			if len(rule.NonResourceURLs) > 0 {
				t.Errorf("%s: %v", role.Name, rule.NonResourceURLs)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						right := verb + " " + strings.TrimSuffix(resource+"."+group, ".")
						got = append(got, strings.Join(append([]string{right}, rule.ResourceNames...), " "))
					}
				}
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-used +granted):\n%s", diff)
	}
	for _, right := range got {
		if strings.Contains(right, "*") || strings.Contains(right, "/") {
			t.Errorf("%s is more than one thing, or a subresource", right)
		}
	}
}

// viewRole is no right of the engine's: it is added to those of people.
const viewRole = "dhcp-meta-view"

// Whoever may look at a namespace may look at its leases, and no more.
func TestViewersRights(t *testing.T) {
	roles := slices.DeleteFunc(all[rbacv1.ClusterRole](t), func(r *rbacv1.ClusterRole) bool { return r.Name != viewRole })
	if len(roles) != 1 {
		t.Fatalf("%d roles %s", len(roles), viewRole)
	}
	want := []rbacv1.PolicyRule{{APIGroups: []string{"dhcp-meta.io"}, Resources: []string{"dhcpleases"}, Verbs: []string{"get", "list", "watch"}}}
	if diff := cmp.Diff(want, roles[0].Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// Rights are bound to the engine's service account alone.
func TestBindings(t *testing.T) {
	accounts := all[corev1.ServiceAccount](t)
	roles := slices.DeleteFunc(all[rbacv1.ClusterRole](t), func(r *rbacv1.ClusterRole) bool { return r.Name == viewRole })
	bindings := all[rbacv1.ClusterRoleBinding](t)
	if len(accounts) != 1 || len(roles) != 1 || len(bindings) != 1 {
		t.Fatalf("%d accounts, %d roles, %d bindings", len(accounts), len(roles), len(bindings))
	}
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: accounts[0].Name, Namespace: accounts[0].Namespace}}
	if diff := cmp.Diff(want, bindings[0].Subjects); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
	if ref := bindings[0].RoleRef; ref.Name != roles[0].Name || ref.Kind != "ClusterRole" {
		t.Errorf("bound to %v", ref)
	}
	namespaces := all[corev1.Namespace](t)
	if len(namespaces) != 1 || namespaces[0].Name != accounts[0].Namespace {
		t.Errorf("the account is in %s, which is not made", accounts[0].Namespace)
	}
	user := "system:serviceaccount:" + accounts[0].Namespace + ":" + accounts[0].Name
	for _, p := range all[admissionv1.ValidatingAdmissionPolicy](t) {
		if p.Name == "dhcp-engine-pods" && !strings.Contains(p.Spec.MatchConditions[0].Expression, `"`+user+`"`) {
			t.Errorf("policy %s is not about %s", p.Name, user)
		}
	}
}

// Each policy is in force, and says what it refuses.
func TestPolicies(t *testing.T) {
	bound := map[string]bool{}
	for _, b := range all[admissionv1.ValidatingAdmissionPolicyBinding](t) {
		if !slices.Equal(b.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) || b.Spec.MatchResources != nil || b.Spec.ParamRef != nil {
			t.Errorf("%s does not deny everywhere", b.Name)
		}
		bound[b.Spec.PolicyName] = true
	}
	policies := all[admissionv1.ValidatingAdmissionPolicy](t)
	if len(policies) != len(bound) {
		t.Errorf("%d policies, %d of them bound", len(policies), len(bound))
	}
	for _, p := range policies {
		if !bound[p.Name] {
			t.Errorf("%s is not bound", p.Name)
		}
		if p.Spec.FailurePolicy == nil {
			t.Errorf("%s does not say what happens when it fails", p.Name)
		}
		for _, v := range p.Spec.Validations {
			if v.Message == "" {
				t.Errorf("%s: %s has no message", p.Name, v.Expression)
			}
		}
	}
}

// The texts are those of OKEP-6224, and of the engine.
func TestK21K22K23K84MessagesAreOVNKubernetes(t *testing.T) {
	messages := map[string]int{
		"Subnets is forbidden when ipam.mode is DHCP; addresses are assigned by the external DHCP server": 0,
		"DHCP ipam.mode is only supported for Localnet Secondary networks":                                0,
		"DHCP ipam.mode is not supported for Layer2 topology, use Localnet topology instead":              0,
	}
	for _, p := range all[admissionv1.ValidatingAdmissionPolicy](t) {
		for _, v := range p.Spec.Validations {
			if _, ok := messages[v.Message]; ok {
				messages[v.Message]++
			}
		}
	}
	for m, n := range messages {
		if n != 2 {
			t.Errorf("%q is said by %d policies, want 2: for ClusterUserDefinedNetworks and for NetworkAttachmentDefinitions", m, n)
		}
	}
}
