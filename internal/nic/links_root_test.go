package nic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

func TestInspect(t *testing.T) {
	for kind, r := range map[string]*rig{"veth": newRig(t), "macvlan": newMacvlanRig(t)} {
		r.inPod("link", "set", "net1", "address", testMAC.String())
		got, err := r.links.Inspect(t.Context(), r.target)
		if err != nil {
			t.Fatal(err)
		}
		if got.Netns.Cookie == 0 {
			t.Error("no cookie")
		}
		want := engine.Link{
			Netns:        engine.Netns{Path: r.pod.Path, Cookie: got.Netns.Cookie},
			HardwareAddr: testMAC,
			MTU:          1500,
			Kind:         kind,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("link (-want +got):\n%s", diff)
		}
		r.target.Netns = got.Netns
		if _, err := r.links.Inspect(t.Context(), r.target); err != nil {
			t.Errorf("with its own cookie: %v", err)
		}
		// Before the interface is there, as in Prepare.
		got, err = r.links.Inspect(t.Context(), engine.Target{Netns: r.pod})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(engine.Link{Netns: want.Netns}, got); diff != "" {
			t.Errorf("namespace (-want +got):\n%s", diff)
		}
	}
}

// The engine tells by the kind where interfaces share a MAC and where a driver
// keeps unicast from a client without an address.
func TestInspectKinds(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		kind string
		args []string
	}{
		{"bridge", []string{"type", "bridge"}},
		{"dummy", []string{"type", "dummy"}},
		{"ipvlan", []string{"link", "net1", "type", "ipvlan", "mode", "l2"}},
		{"ipvtap", []string{"link", "net1", "type", "ipvtap", "mode", "l2"}},
		{"macvlan", []string{"link", "net1", "type", "macvlan", "mode", "bridge"}},
		{"veth", []string{"type", "veth", "peer", "name", "peer"}},
		{"vlan", []string{"link", "net1", "type", "vlan", "id", "7"}},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			args := append([]string{"-n", r.podName, "link", "add", "net2"}, tt.args...)
			if out, err := exec.Command("ip", args...).CombinedOutput(); bytes.Contains(out, []byte("Unknown device type")) {
				t.Skipf("this kernel has no %s", tt.kind)
			} else if err != nil {
				t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
			}
			got, err := r.links.Inspect(t.Context(), engine.Target{Netns: r.pod, IfName: "net2"})
			if err != nil || got.Kind != tt.kind {
				t.Errorf("kind is %q (%v), want %q", got.Kind, err, tt.kind)
			}
			r.inPod("link", "del", "net2")
		})
	}
}

func TestMissingInterfaceIsGone(t *testing.T) {
	r := newRig(t)
	r.target.IfName = "net9"
	_, err := r.links.Inspect(t.Context(), r.target)
	wantGone(t, err)
	for _, word := range []string{"net9", r.pod.Path} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not name %s", err, word)
		}
	}
	_, err = r.links.Open(t.Context(), r.target)
	wantGone(t, err)
	wantGone(t, r.links.Configure(t.Context(), r.target, engine.Setup{}, setup(t, "10.77.0.50/24"), 0))
	wantGone(t, r.links.Verify(t.Context(), r.target, engine.Setup{}))
	wantGone(t, r.links.SetHardwareAddr(t.Context(), r.target, testMAC))
	if err := r.links.Clear(t.Context(), r.target, setup(t, "10.77.0.50/24")); err != nil {
		t.Errorf("Clear: %v, want nil", err)
	}
}

// Field case B41: a namespace made anew at the path of an old one is another.
func TestNamespaceMadeAnewIsGoneB41(t *testing.T) {
	r := newRig(t)
	link, err := r.links.Inspect(t.Context(), r.target)
	if err != nil {
		t.Fatal(err)
	}
	r.target.Netns = link.Netns
	ip(t, "netns", "del", r.podName)
	_, err = r.links.Inspect(t.Context(), r.target)
	wantGone(t, err)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v, want ErrNotExist too", err)
	}
	ip(t, "netns", "add", r.podName)
	r.inPod("link", "add", "net1", "type", "veth", "peer", "name", "other")
	want := setup(t, "10.77.0.50/24")
	_, err = r.links.Inspect(t.Context(), r.target)
	wantGone(t, err)
	_, err = r.links.Open(t.Context(), r.target)
	wantGone(t, err)
	wantGone(t, r.links.Configure(t.Context(), r.target, engine.Setup{}, want, 0))
	if err := r.links.Clear(t.Context(), r.target, want); err != nil {
		t.Errorf("Clear: %v, want nil", err)
	}
	if out := r.inPod("-4", "addr", "show", "dev", "net1"); strings.Contains(out, "10.77.0.50") {
		t.Errorf("the new namespace was touched: %s", out)
	}
	if out := r.inPod("link", "show", "dev", "net1"); strings.Contains(out, "UP") {
		t.Errorf("the new namespace was touched: %s", out)
	}
}

// What the runtimes use: names, links to them, processes.
func TestAllowedPaths(t *testing.T) {
	r := newRig(t)
	base := t.TempDir()
	links, err := Open(Config{Roots: []string{filepath.Join(base, "var/netns"), "/run/netns", "/proc"}})
	if err != nil {
		t.Fatal(err)
	}
	outside, err := Open(Config{Roots: []string{base}})
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("ip", "netns", "exec", r.podName, "cat")
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		holder.Wait()
	})
	// When it echoes, it has entered the namespace.
	if _, err := stdin.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	process := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	link := func(target, name string) string {
		path := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link("/run/netns", "var/netns")
	docker := filepath.Join("/run/netns", r.podName+"-link")
	if err := os.Symlink(process, docker); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(docker) })

	for _, tt := range []struct {
		name, path string
	}{
		{"OK name", r.pod.Path},
		{"OK trailing slash", r.pod.Path + "/"},
		{"OK dots", "/run/../run/netns/./" + r.podName},
		{"OK root that is a link", filepath.Join(base, "var/netns", r.podName)},
		{"OK process", process},
		{"OK thread", fmt.Sprintf("/proc/%[1]d/task/%[1]d/ns/net", holder.Process.Pid)},
		{"OK link to a process", docker},
	} {
		t.Run(tt.name, func(t *testing.T) {
			target := engine.Target{Netns: engine.Netns{Path: tt.path}, IfName: "net1"}
			if _, err := links.Inspect(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			if _, err := outside.Inspect(t.Context(), target); err == nil {
				t.Fatal("allowed also where its root is not")
			}
		})
	}
}

func TestSetHardwareAddr(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		for _, mac := range []net.HardwareAddr{testMAC, otherMAC, otherMAC} {
			if err := r.links.SetHardwareAddr(t.Context(), r.target, mac); err != nil {
				t.Fatal(err)
			}
			if got := r.podMAC(); got.String() != mac.String() {
				t.Fatalf("address is %s, want %s", got, mac)
			}
			r.up()
		}
		for name, mac := range map[string]net.HardwareAddr{
			"bad short": testMAC[:5], "bad multicast": {1, 0, 0, 0, 0, 1}, "bad zero": make(net.HardwareAddr, 6),
		} {
			if err := r.links.SetHardwareAddr(t.Context(), r.target, mac); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}

func TestSetHardwareAddrInUse(t *testing.T) {
	r := newMacvlanRig(t)
	r.inPod("link", "add", "net2", "address", testMAC.String(), "link", "parent", "type", "macvlan", "mode", "bridge")
	r.inPod("link", "set", "net2", "up")
	r.up()
	ctx, cancel := context.WithTimeout(t.Context(), 2*busyPoll)
	defer cancel()
	err := r.links.SetHardwareAddr(ctx, r.target, testMAC)
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "another interface") {
		t.Fatalf("err = %v", err)
	}
	// B84: the interface of the sandbox before goes some time after its namespace.
	errC := make(chan error, 1)
	go func() { errC <- r.links.SetHardwareAddr(t.Context(), r.target, testMAC) }()
	r.inPod("link", "delete", "net2")
	if err := <-errC; err != nil {
		t.Fatal(err)
	}
	if got := r.podMAC(); got.String() != testMAC.String() {
		t.Errorf("address is %s", got)
	}
}

// usage counts what must not pile up.
func usage(t *testing.T) (goroutines, threads, descriptors int) {
	t.Helper()
	count := func(dir string) int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	return runtime.NumGoroutine(), count("/proc/self/task"), count("/proc/self/fd")
}

// wantThreadsAtHome fails when a thread was left in another namespace.
func wantThreadsAtHome(t *testing.T) {
	t.Helper()
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, task := range tasks {
		if at, err := os.Readlink(task); err == nil && at != home {
			t.Errorf("%s is %s, want %s", task, at, home)
		}
	}
}

// Field cases B85 and B87: neither descriptors nor threads nor goroutines grow
// with what was done.
func TestNothingPilesUpB85B87(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		want := setup(t, "10.77.0.50/24; default via 10.77.0.1")
		once := func() {
			if _, err := r.links.Inspect(t.Context(), r.target); err != nil {
				t.Error(err)
			}
			p, err := r.links.Open(t.Context(), r.target)
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
		}
		all := func() {
			once()
			r.configure(engine.Setup{}, want, 0)
			r.verify(want)
		}
		all()
		goroutines, threads, descriptors := usage(t)
		var done sync.WaitGroup
		for range 10 {
			done.Go(func() {
				for range 100 {
					once()
				}
			})
		}
		done.Wait()
		all()
		// The runtime keeps a few threads of its own choice, and a goroutine that
		// has told its result may still be about to end; a leak would be of a
		// thousand.
		const slack = 20
		g, th, d := usage(t)
		if g > goroutines+slack || th > threads+slack || d > descriptors+slack {
			t.Errorf("after 1000 opens: goroutines %d to %d, threads %d to %d, descriptors %d to %d",
				goroutines, g, threads, th, descriptors, d)
		}
		wantThreadsAtHome(t)
	})
}
