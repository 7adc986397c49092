package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

var twoNodes = map[string][]api.Status{
	"n1": {status("c2", "shop", "web-1", "net1", "BOUND", "10.77.0.51/24"), status("c9", "vms", "db", "net1", "REPORTED", "10.77.0.77/24")},
	"n2": {status("c1", "shop", "web-0", "net1", "REBINDING", "10.77.0.50/24"), status("c1", "shop", "web-0", "net2", "BOUND", "10.78.0.50/24"),
		status("c0", "shop", "web-0", "net1", "SUPERSEDED", "")},
}

// words are a table's rows without their spaces.
func words(table string) []string {
	var rows []string
	for line := range strings.Lines(table) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	return rows
}

// A name that several networks have in their configurations does not say on which one to
// ask; one that has no NetworkAttachmentDefinition has no other name.
func TestProbeOfANetworkByItsName(t *testing.T) {
	bare := status("c3", "shop", "bare", "net1", "BOUND", "10.79.0.1/24")
	bare.Network, bare.NAD = "site", ""
	d := &double{t: t, pods: []corev1.Pod{enginePod("n1")}, run: engines(map[string][]api.Status{"n1": {
		status("c1", "shop", "web-0", "net1", "BOUND", "10.77.0.50/24"), status("c2", "depot", "web-1", "net1", "BOUND", "10.78.0.50/24"), bare,
	}})}
	if _, stderr, code := d.call("probe", "--network=lan"); code != 1 || !strings.Contains(stderr, "several networks are called lan in their configurations: name one of depot/lan, shop/lan") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
	for network, pod := range map[string]string{"depot/lan": "depot/web-1", "shop/lan": "shop/web-0", "site": "shop/bare"} {
		if _, stderr, code := d.call("probe", "--network", network); code != 0 || !strings.Contains(stderr, "of pod "+pod+",") {
			t.Errorf("%s: exit code %d:\n%s", network, code, stderr)
		}
	}
}

// The leases of all nodes are one table, sorted; a node that cannot be asked is one
// line, and costs no other's leases.
func TestLeasesOfAllNodes(t *testing.T) {
	d := &double{t: t, run: engines(twoNodes), pods: []corev1.Pod{enginePod("n1"), enginePod("n2"), enginePod("n3", waiting("CrashLoopBackOff"))}}
	stdout, stderr, code := d.call("leases", "-A")
	want := []string{
		"NAMESPACE POD INTERFACE ADDRESS SERVER STATE T1 EXPIRES NODE LAST ERROR",
		"shop web-0 net1 - 10.77.0.1 SUPERSEDED - - n2 -",
		"shop web-0 net1 10.77.0.50/24 10.77.0.1 REBINDING - - n2 -",
		"shop web-0 net2 10.78.0.50/24 10.77.0.1 BOUND - - n2 -",
		"shop web-1 net1 10.77.0.51/24 10.77.0.1 BOUND - - n1 -",
		"vms db net1 10.77.0.77/24 10.77.0.1 REPORTED - - n1 -",
	}
	if diff := cmp.Diff(want, words(stdout)); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	wantErr := []string{
		"kubectl dhcp: dhcp-engine of node n3 cannot be asked: pod dhcp-meta/dhcp-engine-n3: container engine: CrashLoopBackOff; look at kubectl -n dhcp-meta describe pod dhcp-engine-n3",
		"kubectl dhcp: leases: nodes whose leases are missing: 1",
	}
	if diff := cmp.Diff(wantErr, words(stderr)); diff != "" || code != 1 {
		t.Errorf("exit code %d, stderr (-want +got):\n%s", code, diff)
	}

	d.pods = d.pods[:2]
	stdout, stderr, code = d.call("leases") // of the kubeconfig's namespace
	if rows := words(stdout); len(rows) != 5 || strings.HasPrefix(rows[0], "NAMESPACE") || strings.Contains(stdout, "db") || code != 0 || stderr != "" {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	stdout, _, code = d.call("leases", "-n", "vms", "-o", "json")
	var list []lease
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != 1 || list[0].Node != "n1" || list[0].Pod.Name != "db" || code != 0 {
		t.Errorf("exit code %d, %v\n%s", code, err, stdout)
	}
	stdout, _, code = d.call("leases", "--node", "n2", "-A", "-o=wide")
	if rows := words(stdout); len(rows) != 4 || strings.Contains(stdout, "n1") || !strings.Contains(stdout, "shop/lan") || code != 0 {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	if stdout, _, code = d.call("leases", "-n", "empty"); stdout != "No leases found.\n" || code != 0 {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
}

// However many nodes there are, and however long their lists.
func TestManyNodes(t *testing.T) {
	of := map[string][]api.Status{}
	var pods []corev1.Pod
	for i := range 100 {
		node := fmt.Sprintf("n%03d", i)
		pods = append(pods, enginePod(node))
		for j := range 50 {
			of[node] = append(of[node], status(fmt.Sprintf("c%d", j), "shop", fmt.Sprintf("pod-%d-%d", i, j), "net1", "BOUND", "10.0.0.1/8"))
		}
	}
	d := &double{t: t, run: engines(of), pods: pods}
	stdout, stderr, code := d.call("leases", "-A", "-o=json")
	var list []lease
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != 5000 || code != 0 {
		t.Errorf("exit code %d, %v, %d leases\n%s", code, err, len(list), stderr)
	}
}

// What is asked for a pod goes to its node's engine, with the attachment that it has.
func TestCommandsOnPods(t *testing.T) {
	pods := []corev1.Pod{enginePod("n1"), enginePod("n2"), workload("web-0", "n2"), workload("web-1", "n1"), workload("plain", "n1"), workload("new", ""), workload("far", "n9")}
	tests := []struct {
		name string
		args []string
		ran  []string
		want string // in what is written
		code int
	}{
		{"OK the only interface", []string{"renew", "web-1"}, []string{"n1: renew -o table c2:net1"}, "done: renew", 0},
		{"OK one of two", []string{"rebind", "web-0", "net2"}, []string{"n2: rebind -o table c1:net2"}, "done: rebind", 0},
		{"OK not of an earlier sandbox", []string{"renew", "web-0", "net1", "-o", "json"}, []string{"n2: renew -o json c1:net1"}, "done", 0},
		{"OK flags before", []string{"release", "--yes", "web-1", "net1"}, []string{"n1: release --yes c2:net1"}, "done", 0},
		{"OK the engine asks back", []string{"release", "web-1"}, []string{"n1: release c2:net1"}, "done", 0},
		{"OK probe", []string{"probe", "web-1", "--timeout=2s"}, []string{"n1: probe --netns /run/netns/c2 --interface net1 --timeout 2s -o table"}, "done", 0},
		{"OK probe a network", []string{"probe", "--network", "shop/lan"}, []string{"n2: probe --netns /run/netns/c1 --interface net1 --timeout 5s -o table"}, "asking on net1 of pod shop/web-0, node n2", 0},
		{"OK probe a network on a node", []string{"probe", "--network=shop/lan", "--node=n1"}, []string{"n1: probe --netns /run/netns/c2 --interface net1 --timeout 5s -o table"}, "web-1", 0},
		{"OK probe a network by the name in its configuration", []string{"probe", "--network", "lan"}, []string{"n2: probe --netns /run/netns/c1 --interface net1 --timeout 5s -o table"}, "web-0", 0},
		{"OK doctor", []string{"doctor", "--node=n1", "--network", "shop/lan"}, []string{"n1: doctor -o table --network shop/lan"}, "done", 0},
		{"OK doctor everywhere", []string{"doctor", "-o=json"}, []string{"n1: doctor -o json", "n2: doctor -o json"}, "== node n2", 0},

		{"OK a namespace before", []string{"-n", "shop", "renew", "web-1"}, []string{"n1: renew -o table c2:net1"}, "done: renew", 0},
		{"OK the later counts", []string{"--namespace=vms", "renew", "-n=shop", "web-1"}, []string{"n1: renew -o table c2:net1"}, "done: renew", 0},
		{"OK several before", []string{"-nshop", "--engine-namespace", "dhcp-meta", "--request-timeout=9s", "leases", "-A"}, nil, "web-1", 0},
		{"OK help", []string{"-h"}, nil, "Usage:", 0},
		{"OK help after a flag", []string{"-n", "shop", "--help"}, nil, "Usage:", 0},
		{"OK help of a command", []string{"-n", "shop", "leases", "-h"}, nil, "Usage: kubectl dhcp leases", 0},
		{"OK version", []string{"-n", "shop", "version"}, nil, "", 0},

		{"bad namespace before", []string{"-n", "elsewhere", "renew", "web-1"}, nil, "no pod web-1 is in namespace elsewhere", 1},
		{"bad flag of a command before", []string{"-A", "leases"}, nil, "before the command: unknown shorthand flag: 'A' in -A: its flags come after it", 2},
		{"bad value missing", []string{"-n"}, nil, "before the command: flag needs an argument", 2},
		{"bad no command", []string{"-n", "shop"}, nil, "no command", 2},
		{"bad command after a flag", []string{"-n", "shop", "lease"}, nil, `unknown command "lease"`, 2},
		{"bad several interfaces", []string{"renew", "web-0"}, nil, "several interfaces of pod shop/web-0 have addresses by DHCP: name one of net1, net2", 1},
		{"bad interface", []string{"renew", "web-1", "eth0"}, nil, "interface eth0 of pod shop/web-1 has nothing by DHCP: these have: net1", 1},
		{"bad pod without a lease", []string{"renew", "plain"}, nil, "keeps nothing for pod shop/plain: is one of its networks for DHCP, and did it start, or was its lease released by hand: kubectl describe pod", 1},
		{"bad pod", []string{"renew", "nobody"}, nil, "no pod nobody is in namespace shop", 1},
		{"bad unscheduled", []string{"renew", "new"}, nil, "pod shop/new is on no node yet", 1},
		{"bad node without an engine", []string{"renew", "far"}, nil, "no dhcp-engine pod is on node n9 (namespace dhcp-meta, label app.kubernetes.io/name=dhcp-engine)", 1},
		{"bad node", []string{"doctor", "--node=n9"}, nil, "no dhcp-engine pod is on node n9", 1},
		{"bad engine namespace", []string{"leases", "--engine-namespace=other"}, nil, "no dhcp-engine pod is in namespace other", 1},
		{"bad network", []string{"probe", "--network", "shop/none"}, nil, "no pod has an interface by DHCP on network shop/none", 1},
		{"bad network of guests alone", []string{"probe", "--network", "vms/lan"}, nil, "no pod has an interface by DHCP on network vms/lan", 1},
		{"bad probe of nothing", []string{"probe"}, nil, "name a pod, or --network", 2},
		{"bad probe of two things", []string{"probe", "web-0", "--network=shop/lan"}, nil, "name a pod, or --network", 2},
		{"bad too much", []string{"renew", "web-0", "net1", "now"}, nil, `unexpected argument "now"`, 2},
		{"bad nothing", []string{"renew"}, nil, "POD [INTERFACE] is missing", 2},
		{"bad flag", []string{"leases", "--colour"}, nil, "unknown flag: --colour", 2},
		{"bad output", []string{"leases", "-o", "yaml"}, nil, `"yaml" is none of table, wide, json`, 2},
		{"bad command", []string{"lease"}, nil, `unknown command "lease"`, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &double{t: t, run: engines(twoNodes), pods: pods}
			stdout, stderr, code := d.call(tt.args...)
			if code != tt.code || !strings.Contains(stdout+stderr, tt.want) {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", code, tt.code, tt.want, stdout, stderr)
			}
			if diff := cmp.Diff(tt.ran, d.commands()); diff != "" {
				t.Errorf("executed (-want +got):\n%s", diff)
			}
			if tt.code == 1 && strings.Count(stderr, "\n") != 1 {
				t.Errorf("more than one line:\n%s", stderr)
			}
		})
	}
}

// How a command ended in the engine is how it ends here, and what it says is all that
// is said.
func TestExitCodesPassThrough(t *testing.T) {
	for _, code := range []int{1, 2, 137} {
		d := &double{t: t, pods: []corev1.Pod{enginePod("n1"), workload("web-1", "n1")}}
		list := engines(twoNodes)
		d.run = func(node string, args []string) (string, string, int) {
			if args[0] == "leases" {
				return list(node, args)
			}
			return "some\n", "dhcp-engine: it does not work\n", code
		}
		stdout, stderr, got := d.call("renew", "web-1")
		if got != code || stdout != "some\n" || stderr != "dhcp-engine: it does not work\n" {
			t.Errorf("exit code %d, want %d\n%s%s", got, code, stdout, stderr)
		}
	}
}

// A server that knows no websockets for this is asked by SPDY.
func TestOldServer(t *testing.T) {
	d := &double{t: t, old: true, run: engines(twoNodes), pods: []corev1.Pod{enginePod("n1"), enginePod("n2"), workload("web-1", "n1")}}
	stdout, stderr, code := d.call("leases", "-A")
	if rows := words(stdout); len(rows) != 6 || code != 0 {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if stdout, stderr, code = d.call("renew", "web-1"); code != 0 || !strings.HasPrefix(stdout, "done: renew") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// An engine that fails to list says why in one line; so does an API that refuses.
func TestEnginesThatFail(t *testing.T) {
	d := &double{t: t, pods: []corev1.Pod{enginePod("n1"), workload("web-1", "n1")}}
	d.run = func(string, []string) (string, string, int) {
		return "", "dhcp-engine: list the leases: no engine answers\nmore", 1
	}
	if _, stderr, code := d.call("leases"); code != 1 || !strings.Contains(stderr, "dhcp-engine leases of node n1: exit code 1: dhcp-engine: list the leases: no engine answers\n") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	d.run = func(string, []string) (string, string, int) { return "no JSON", "", 0 }
	if _, stderr, code := d.call("renew", "web-1"); code != 1 || !strings.Contains(stderr, "read the leases of node n1") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	d.run = nil
	if _, stderr, code := d.call("leases"); code != 1 || !strings.Contains(stderr, "run dhcp-engine leases in pod dhcp-meta/dhcp-engine-n1 of node n1") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// Doctor goes on where a node cannot be asked, and ends as the first that found
// something.
func TestDoctorOfAllNodes(t *testing.T) {
	d := &double{t: t, pods: []corev1.Pod{enginePod("n1"), enginePod("n2", waiting("ImagePullBackOff")), enginePod("n3")}}
	d.run = func(node string, _ []string) (string, string, int) {
		if node == "n3" {
			return "ill\n", "", 1
		}
		return "well\n", "", 0
	}
	stdout, stderr, code := d.call("doctor")
	if code != 1 || stdout != "well\nill\n" || !strings.Contains(stderr, "node n2 cannot be asked: pod dhcp-meta/dhcp-engine-n2: container engine: ImagePullBackOff") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// Of several pods on a node the one that runs is asked; of two that run the one that
// stays, or the newer.
func TestOnePodANode(t *testing.T) {
	now := metav1.Now()
	named := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Name = name } }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &now }
	born := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
	}
	initializing := func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "install", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}}
	}
	tests := []struct {
		name    string
		pods    []corev1.Pod
		want    string
		trouble string
	}{
		{"OK one", []corev1.Pod{enginePod("n1")}, "dhcp-engine-n1", ""},
		{"OK running before waiting", []corev1.Pod{enginePod("n1", named("a"), waiting("X")), enginePod("n1", named("b"))}, "b", ""},
		{"OK staying before ending", []corev1.Pod{enginePod("n1", named("a"), ending), enginePod("n1", named("b"))}, "b", ""},
		{"OK ending before waiting", []corev1.Pod{enginePod("n1", named("a"), ending), enginePod("n1", named("b"), waiting("X"))}, "a", ""},
		{"OK the newer", []corev1.Pod{enginePod("n1", named("a"), born(time.Hour)), enginePod("n1", named("b"), born(time.Minute))}, "b", ""},
		{"bad installer", []corev1.Pod{enginePod("n1", initializing)}, "dhcp-engine-n1", "init container install: CrashLoopBackOff"},
		{"bad pending", []corev1.Pod{enginePod("n1", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })}, "dhcp-engine-n1", "is Pending"},
		{"bad ended", []corev1.Pod{enginePod("n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}}
		})}, "dhcp-engine-n1", "container engine has ended with exit code 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := onePerNode(append(tt.pods, enginePod("", named("nowhere"))))
			if len(got) != 1 || got[0].Name != tt.want || trouble(got[0]) != tt.trouble {
				t.Errorf("%d pods, %s: %q", len(got), got[0].Name, trouble(got[0]))
			}
		})
	}
}

// What engines say of the world cannot talk to the terminal, and times are what is left.
func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { t := now.Add(d); return &t }
	s := status("c1", "shop", "web-0", "net1", "BOUND", "10.77.0.50/24")
	s.T1, s.Expiry, s.LastError = at(-90*time.Second), at(time.Hour), "evil\x1b[31m\nline"
	forever := status("c2", "shop", "web-1", "net1", "BOUND", "10.77.0.51/24")
	forever.Infinite = true
	var out strings.Builder
	if err := (table{now: now}).write(&out, []lease{{"n1", s}, {"n1", forever}}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"POD INTERFACE ADDRESS SERVER STATE T1 EXPIRES NODE LAST ERROR",
		"web-0 net1 10.77.0.50/24 10.77.0.1 BOUND 1m30s ago 1h0m0s n1 evil [31m line",
		"web-1 net1 10.77.0.51/24 10.77.0.1 BOUND - infinite n1 -",
	}
	if diff := cmp.Diff(want, words(out.String())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
