package image

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// capability is a row of the tables of docs/security.md.
type capability struct {
	name string
	// refusal matches what an ADD says without it.
	refusal *regexp.Regexp
}

var row = regexp.MustCompile("^\\| `([A-Z_]+)`[^|]*\\|[^|]*\\| `([^`]+)` \\|$")

// documented are the capabilities in the table below a heading of docs/security.md.
func documented(t *testing.T, heading string) []capability {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []capability
	below := false
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if text := lines.Text(); strings.HasPrefix(text, "#") {
			below = strings.TrimLeft(text, "# ") == heading
		} else if m := row.FindStringSubmatch(text); m != nil && below {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(m[2]), regexp.QuoteMeta("..."), ".*")
			all = append(all, capability{m[1], regexp.MustCompile("^" + pattern + "$")})
		}
	}
	if len(all) == 0 {
		t.Fatalf("docs/security.md has no table of capabilities below %q", heading)
	}
	return all
}

// TestU20DocumentedCapabilities: docs/security.md and the DaemonSet have the same ones.
func TestU20DocumentedCapabilities(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	var names []string
	for _, c := range documented(t, "Capabilities") {
		names = append(names, c.name)
	}
	given := newContainer(t, nil, "engine").capabilities
	if diff := cmp.Diff(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(given))); diff != "" {
		t.Errorf("(-docs/security.md +manifests/base):\n%s", diff)
	}
}

// network is a network whose every setting has the engine do something to the pod's
// interface.
func network(e *rig.Engine) object {
	return object{
		"cniVersion": "1.0.0", "name": "office-lan", "type": "dhcp-meta",
		"delegate": object{"type": "macvlan", "master": rig.Uplink, "mode": "bridge"},
		"dhcp":     object{"socket": e.Socket, "stateDir": e.StateDir, "mac": "derive", "defaultRoute": "always"},
	}
}

// TestU20CapabilitiesSuffice: with the capabilities of docs/security.md and no others,
// in a read-only root, the engine leases, renews, probes, serves the drop-in's socket,
// comes back to its leases and gives them back. CRI-O's path of a namespace is the
// same namespace.
func TestU20CapabilitiesSuffice(t *testing.T) {
	t.Parallel()
	archives(t)
	lan := rig.NewLAN(t)
	server := rig.RunDnsmasq(t, lan.Server, rig.Pool(2*time.Second, 4*time.Second))
	c := newContainer(t, lan.Node, "engine")
	c.mount(t, "/run/cni", "/run/cni", "rw", "rprivate") // of manifests/overlays/drop-in
	engine := c.engine("--dhcp-socket=/run/cni/dhcp.sock")
	engine.Start(t)
	confinement(t, engine.PID(), c.capabilities)

	s := rig.NewSandbox(t)
	call := s.Call("net1", network(engine))
	call.Netns = "/var" + s.Path
	mark := lan.Capture.Len()
	lan.Node.Add(t, call)
	address := server.AwaitHeld(t, "one lease", func(held []rig.Held) bool { return len(held) == 1 })[0].Addr
	s.AwaitAddress(t, "net1", address)
	lan.Capture.Await(t, "renewal from "+address.String(), mark, rig.Patience, func(f rig.Frame) bool {
		return f.FromClient() && f.Src.Addr() == address
	})

	out := engine.MustCommand(t, "probe", "--netns", call.Netns, "--interface", "net1", "--client-id", "none")
	if !strings.Contains(out, rig.ServerAddr.Addr().String()) {
		t.Errorf("probe does not name the server:\n%s", out)
	}

	dropIn := rig.NewSandbox(t)
	plugin(t, lan, "ADD", dropIn, filepath.Join(c.host, "run/cni/dhcp.sock"))
	server.AwaitHeld(t, "two leases", func(held []rig.Held) bool { return len(held) == 2 })

	engine.Restart(t, engine.Kill)
	if n := len(engine.Leases(t)); n != 2 {
		t.Errorf("the engine has %d leases after a restart, want 2", n)
	}
	plugin(t, lan, "DEL", dropIn, filepath.Join(c.host, "run/cni/dhcp.sock"))
	lan.Node.Del(t, call)
	server.AwaitHeld(t, "no lease", rig.Nothing)
	engine.AwaitNoRecords(t)
}

// numbers are those of capabilities in the kernel.
var numbers = map[string]int{"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "SYS_ADMIN": unix.CAP_SYS_ADMIN}

// confinement holds that the engine below the process is confined as the test says.
func confinement(t *testing.T, pid int, capabilities []string) {
	t.Helper()
	mask := 0
	for _, name := range capabilities {
		mask |= 1 << numbers[name]
	}
	proc := descendant(t, pid, "dhcp-engine")
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf("CapPrm:\t%016x", mask), fmt.Sprintf("CapEff:\t%016x", mask), fmt.Sprintf("CapBnd:\t%016x", mask),
		"CapInh:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("the engine's status does not have %q:\n%s", line, status)
		}
	}
	if err := os.WriteFile(proc+"/root/usr/bin/new", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write into the root file system: %v", err)
	}
}

// descendant is the folder in /proc of the process with that name below another one.
func descendant(t *testing.T, pid int, name string) string {
	t.Helper()
	for next := []string{strconv.Itoa(pid)}; len(next) > 0; next = next[1:] {
		proc := "/proc/" + next[0]
		comm, err := os.ReadFile(proc + "/comm")
		if err != nil {
			continue // it has ended
		}
		if strings.TrimSpace(string(comm)) == name {
			return proc
		}
		threads, err := filepath.Glob(proc + "/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			children, _ := os.ReadFile(thread) // nor does a thread that has ended have any
			next = append(next, strings.Fields(string(children))...)
		}
	}
	t.Fatalf("process %d has no descendant %s", pid, name)
	return ""
}

// plugin runs the reference's macvlan plugin, which asks the reference's dhcp plugin,
// which asks what listens at the socket.
func plugin(t *testing.T, lan *rig.LAN, verb string, s *rig.Sandbox, socket string) {
	t.Helper()
	conf, err := json.Marshal(object{
		"cniVersion": "1.0.0", "name": "office-lan", "type": "macvlan", "master": rig.Uplink,
		"ipam": object{"type": "dhcp", "daemonSocketPath": socket},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(rig.Plugins(), "macvlan"))
	cmd.Stdin = bytes.NewReader(conf)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+s.ID, "CNI_IFNAME=net1", "CNI_NETNS="+s.Path, "CNI_PATH="+rig.Plugins())
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stdout
	if err := lan.Node.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s by the dhcp plugin: %v\n%s", verb, err, &stdout)
	}
}

// TestU20EachCapabilityIsNeeded: without any one of them an ADD fails, says which one is
// missing, and leaves nothing.
func TestU20EachCapabilityIsNeeded(t *testing.T) {
	t.Parallel()
	archives(t)
	for _, missing := range documented(t, "Capabilities") {
		t.Run(missing.name, func(t *testing.T) {
			t.Parallel()
			lan := rig.NewLAN(t)
			server := rig.RunDnsmasq(t, lan.Server, rig.Pool(0, 0))
			c := newContainer(t, lan.Node, "engine")
			c.capabilities = slices.DeleteFunc(c.capabilities, func(name string) bool { return name == missing.name })
			engine := c.engine()
			engine.Start(t)
			s := rig.NewSandbox(t)
			refused(t, lan, s.Call("net1", network(engine)), missing)
			engine.AwaitNoRecords(t)
			if held := server.Held(t); len(held) != 0 {
				t.Errorf("the server holds %v", held)
			}
		})
	}
}

// refused executes an ADD that must fail for want of a capability.
func refused(t *testing.T, lan *rig.LAN, call rig.Call, missing capability) {
	t.Helper()
	o, err := lan.Node.CNI("ADD", call)
	switch {
	case err != nil:
		t.Fatal(err)
	case o.Err == nil:
		t.Errorf("ADD succeeds without %s:\n%s", missing.name, o.Stdout)
	case !missing.refusal.MatchString(o.Err.Msg):
		t.Errorf("ADD without %s says %q, docs/security.md %v", missing.name, o.Err.Msg, missing.refusal)
	}
}

// confined is a rig.Place: programs have the capabilities named here and see the
// machine's processes, as with hostPID.
type confined struct {
	*rig.Netns
	capabilities []string
}

func (c confined) Start(t testing.TB, name string, cmd *exec.Cmd) *rig.Process {
	t.Helper()
	bounds := "--bounding-set=-all"
	for _, capability := range c.capabilities {
		bounds += ",+" + strings.ToLower(capability)
	}
	return c.Netns.Start(t, name, exec.Command("setpriv", append([]string{bounds, "--inh-caps=-all", "--no-new-privs", "--"}, cmd.Args...)...))
}

// TestU20NamespacesBelowProc: a runtime that names namespaces by processes needs one
// capability more, and the process numbers of the node.
func TestU20NamespacesBelowProc(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	more := documented(t, "Where more is needed")
	if len(more) != 1 || more[0].name != "SYS_PTRACE" {
		t.Fatalf("docs/security.md has %v", more)
	}
	given := newContainer(t, nil, "engine").capabilities
	for _, capabilities := range [][]string{given, append(slices.Clone(given), more[0].name)} {
		lan := rig.NewLAN(t)
		rig.RunDnsmasq(t, lan.Server, rig.Pool(0, 0))
		state := t.TempDir()
		run, err := os.MkdirTemp("", "dm")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(run) })
		socket := filepath.Join(run, "run/engine.sock")
		engine := rig.NewEngineAt(confined{lan.Node, capabilities}, state, socket,
			"--no-kubernetes", "--state-dir="+state, "--socket="+socket)
		engine.Start(t)
		s := rig.NewSandbox(t)
		pause := s.Start(t, "pause", exec.Command("sleep", "infinity"))
		call := s.Call("net1", network(engine))
		call.Netns = fmt.Sprintf("/proc/%d/ns/net", pause.PID())
		if slices.Contains(capabilities, more[0].name) {
			lan.Node.Add(t, call)
			lan.Node.Del(t, call)
		} else {
			refused(t, lan, call, more[0])
		}
	}
}

// TestVersionInImage: the image's engine says the version that the image is labelled
// with. It runs without any capability.
func TestVersionInImage(t *testing.T) {
	t.Parallel()
	i := imageOf(t, ofArch(runtime.GOARCH))
	c := newContainer(t, rig.NewNetns(t, "node"), "engine")
	c.capabilities = nil
	want := i.config.Config.Labels["org.opencontainers.image.version"]
	if said, ok := c.run(t, "version"); !ok || said != want {
		t.Errorf("the engine says %q, the image's label %q", said, want)
	}
}
