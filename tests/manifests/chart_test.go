package manifests

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// helmLabels are those that the chart puts on everything.
var helmLabels = []string{
	"app.kubernetes.io/part-of", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by",
	"app.kubernetes.io/version", "helm.sh/chart",
}

// The chart and kustomize are two ways to the same objects, field by field. Helm makes
// the namespace itself.
func TestChartIsTheOverlays(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			want, got := byKey(t, w.kustomize(t)), byKey(t, w.chart(t))
			delete(want, "Namespace /dhcp-meta")
			if len(want) < 8 {
				t.Errorf("%d objects only", len(want))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-kustomize +helm):\n%s", diff)
			}
		})
	}
	for _, w := range uninstallers {
		t.Run(w.name, func(t *testing.T) {
			const daemonSet = "DaemonSet dhcp-meta/dhcp-meta-uninstall"
			want, got := byKey(t, w.kustomize(t)), byKey(t, w.chart(t))
			if diff := cmp.Diff(want, map[string]any{daemonSet: got[daemonSet]}); diff != "" {
				t.Errorf("(-kustomize +helm):\n%s", diff)
			}
			if got["DaemonSet dhcp-meta/dhcp-engine"] != nil {
				t.Error("the engine is there beside the uninstaller")
			}
		})
	}
}

// byKey are objects without what Helm adds, in an order of their own.
func byKey(t *testing.T, stream string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, o := range objects(t, stream) {
		if all[key(o)] != nil {
			t.Errorf("%s is there twice", key(o))
		}
		all[key(o)] = settled(o.Object)
	}
	return all
}

// settled sorts lists whose entries have names, which lie in the order of patches, and
// takes Helm's labels away.
func settled(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = settled(value)
			if labels, ok := value.(map[string]any); ok && name == "labels" {
				for _, l := range helmLabels {
					delete(labels, l)
				}
				if len(labels) == 0 {
					delete(v, name)
				}
			}
		}
	case []any:
		for i := range v {
			v[i] = settled(v[i])
		}
		slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(nameOf(a), nameOf(b)) })
	}
	return v
}

func nameOf(entry any) string {
	m, _ := entry.(map[string]any)
	path, _ := m["mountPath"].(string)
	name, _ := m["name"].(string)
	return path + name
}

// A release may be in any namespace; account, bindings and policy go with it.
func TestChartInAnotherNamespace(t *testing.T) {
	args := chartArguments("openshift.enabled=true", "dhcpNetworks.a.clientID=mac")
	args[len(args)-3] = "--namespace=elsewhere"
	out := mustRun(t, "helm", args...)
	for _, o := range objects(t, out) {
		if ns := o.GetNamespace(); ns != "" && ns != "elsewhere" {
			t.Errorf("%s is in namespace %s", key(o), ns)
		}
	}
	for _, left := range []string{"namespace: dhcp-meta", "serviceaccount:dhcp-meta:"} {
		if strings.Contains(out, left) {
			t.Errorf("%q is left", left)
		}
	}
	if n := strings.Count(out, "system:serviceaccount:elsewhere:dhcp-engine"); n < 2 {
		t.Errorf("the account is named %d times, want it in a policy and in the SecurityContextConstraints", n)
	}
}

// A value that is none of the chart's, or makes no sense, is named.
func TestChartRefusesWrongValues(t *testing.T) {
	for name, tt := range map[string]struct {
		set  string
		want []string
	}{
		"unknown mode":          {"mode=interposed", []string{"mode", "search-path", "drop-in"}},
		"unknown key":           {"mod=plain", []string{"mod"}},
		"unknown key below":     {"vfio.enable=true", []string{"vfio", "enable"}},
		"relative folder":       {"binDir=opt/cni/bin", []string{"binDir"}},
		"plugin with a folder":  {"wrap=/opt/cni/bin/macvlan", []string{"wrap"}},
		"no plugin to wrap":     {"wrap=", []string{"wrap"}},
		"port out of range":     {"metrics.port=70000", []string{"metrics", "port"}},
		"level":                 {"log.level=verbose", []string{"log", "level"}},
		"another one's setting": {"env.PATH=/bin", []string{"env", "PATH"}},
		"misspelled setting":    {"env.DHCP_ENGINE_PROTECTED_NETWROK=10.0.0.0/8", []string{"env", "DHCP_ENGINE_PROTECTED_NETWROK"}},
		"setting with a list":   {"env.DHCP_ENGINE_PROTECTED_NETWORK={10.0.0.0/8}", []string{"env", "DHCP_ENGINE_PROTECTED_NETWORK"}},
		"northbound":            {"ovnNB=10.0.0.1:6641", []string{"ovnNB"}},
		"a network as text":     {"dhcpNetworks.lan=mac", []string{"dhcpNetworks", "lan"}},
		"nobody to update":      {"maxUnavailable=0", []string{"maxUnavailable"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, "helm", chartArguments(tt.set)...)
			if err == nil {
				t.Fatalf("--set %s is taken", tt.set)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
		})
	}
}

// The variables that env may have are those of the engine and of doctor, which runs in
// its container: no more and no fewer.
func TestChartKnowsTheEnginesVariables(t *testing.T) {
	rig.Need(t)
	help, err := exec.CommandContext(t.Context(), rig.Program("dhcp-engine"), "doctor", "-h").Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`\((DHCP_ENGINE_\w+)\)`).FindAllStringSubmatch(string(help), -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	text, err := os.ReadFile("../../manifests/helm/dhcp-meta/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Env struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(schema.Properties.Env.Properties))); diff != "" {
		t.Errorf("env in values.schema.json (-program +schema):\n%s", diff)
	}
}

// Settings come to the engine as they were written, whatever their type, and Go's too.
func TestChartHandsSettingsOn(t *testing.T) {
	w := way{name: "env", values: []string{"env.DHCP_ENGINE_PROTECTED_NETWORK=10.128.0.0/14:172.30.0.0/16",
		"env.DHCP_ENGINE_EXCHANGES_PER_NETWORK=8", "env.DHCP_ENGINE_LEASE_OBJECTS=false", "env.GOMEMLIMIT=64MiB"}}
	got := map[string]string{}
	for _, e := range decode[appsv1.DaemonSet](t, byKey(t, w.chart(t))["DaemonSet dhcp-meta/dhcp-engine"]).Spec.Template.Spec.Containers[0].Env {
		got[e.Name] = e.Value
	}
	for name, want := range map[string]string{"DHCP_ENGINE_PROTECTED_NETWORK": "10.128.0.0/14:172.30.0.0/16",
		"DHCP_ENGINE_EXCHANGES_PER_NETWORK": "8", "DHCP_ENGINE_LEASE_OBJECTS": "false", "GOMEMLIMIT": "64MiB"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// Networks of the drop-in come to the engine as the object that it reads.
func TestChartNetworksOfTheDropIn(t *testing.T) {
	out := mustRun(t, "helm", chartArguments("mode=drop-in", "dhcpNetworks.tenant-blue.clientID=mac", "dhcpNetworks.*.conflictDetection=off")...)
	all := byKey(t, out)
	data := all["ConfigMap dhcp-meta/dhcp-engine-networks"].(map[string]any)["data"].(map[string]any)
	var networks map[string]json.RawMessage
	if err := json.Unmarshal([]byte(data["networks.json"].(string)), &networks); err != nil {
		t.Fatal(err)
	}
	if networks["tenant-blue"] == nil || networks["*"] == nil {
		t.Errorf("networks are %v", data)
	}
	for name, settings := range networks {
		if _, err := network.Parse(settings); err != nil {
			t.Errorf("network %s: %v", name, err)
		}
	}
	if !strings.Contains(out, "value: /etc/dhcp-meta/networks.json") || !strings.Contains(out, "checksum/networks: ") {
		t.Errorf("the engine is not told of them, or not restarted when they change:\n%s", out)
	}
}

// A north database at another place is asked by TLS, with what the Secret has, and
// nothing of the node is mounted for it.
func TestChartNorthboundByTLS(t *testing.T) {
	w := way{name: "tls", values: []string{"ovnNB=ssl:10.0.0.1:6641", "ovnTLSSecret=ovn-cert"}}
	out := w.chart(t)
	ds := decode[appsv1.DaemonSet](t, byKey(t, out)["DaemonSet dhcp-meta/dhcp-engine"])
	env := map[string]string{}
	for _, e := range ds.Spec.Template.Spec.Containers[0].Env {
		if name, ok := strings.CutPrefix(e.Name, "DHCP_ENGINE_OVN_NB"); ok {
			env[name] = e.Value
		}
	}
	want := map[string]string{"": "ssl:10.0.0.1:6641", "_CA": "/etc/ovn-tls/ca.crt", "_CERT": "/etc/ovn-tls/tls.crt", "_KEY": "/etc/ovn-tls/tls.key"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if !strings.Contains(out, "secretName: ovn-cert") || strings.Contains(out, "/run/ovn-ic") {
		t.Errorf("the Secret is not mounted, or a socket of the node is:\n%s", out)
	}
}
