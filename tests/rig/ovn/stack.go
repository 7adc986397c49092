package ovn

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/node"
)

// Names that stay the same in every stack; "physnet" would be a name that
// OVN-Kubernetes keeps for itself.
const (
	Integration    = "br-int"
	ProviderBridge = "br-phys"
	Physical       = "labphys"
	// Chassis is the system-id of the node.
	Chassis = "lab-node-1"
)

// Config says where a stack runs; the zero value is a stack of its own.
type Config struct {
	// Node is the network namespace of all programs; nil: a new one.
	Node *rig.Netns
	// Enter makes a program run in more namespaces than Node; nil: in Node alone.
	Enter func(*exec.Cmd) *exec.Cmd
	// OVSRun and OVNRun are the folders of the sockets, as the programs see them;
	// empty: folders of the test's own.
	OVSRun, OVNRun string
	// Root is where the test finds the root of the programs' file system; empty: it
	// is the test's own.
	Root string
	// NBSchema is the schema of the north database; empty: Debian's.
	NBSchema string
	// NBRemotes are further remotes of the north database: "ptcp:6641:127.0.0.1".
	NBRemotes []string
}

// On is the configuration of a stack on a node with a file system of its own, with
// the sockets where the programs of OVS and OVN look for them by default.
func On(n *node.Node) Config {
	return Config{
		Node: n.Net, Enter: n.Enter, Root: n.Path("/"),
		OVSRun: "/run/openvswitch", OVNRun: "/run/ovn",
	}
}

// Stack is a running OVS with OVN.
type Stack struct {
	Node *rig.Netns
	cfg  Config
	dir  string
	env  []string

	// North is the server of the north database; see StopNorth. Northd computes the
	// south database from it.
	North, Northd *rig.Process
	northArgs     []string
}

// Schema is the file of Debian's schema of the north database.
const Schema = "/usr/share/ovn/ovn-nb.ovsschema"

const (
	southSchema  = "/usr/share/ovn/ovn-sb.ovsschema"
	switchSchema = "/usr/share/openvswitch/vswitch.ovsschema"
)

// Start starts everything and waits until the node's flows are in place.
func Start(t testing.TB, cfg Config) *Stack {
	t.Helper()
	rig.Need(t)
	for _, program := range []string{"ovs-vswitchd", "ovn-northd", "ovn-controller", "ethtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v; `make deps` installs it", err)
		}
	}
	// A socket's path may have 107 bytes, which the folder of a test with a long
	// name would exceed.
	dir, err := os.MkdirTemp("", "dmovn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if cfg.Node == nil {
		cfg.Node = rig.NewNetns(t, "node")
	}
	for _, run := range []*string{&cfg.OVSRun, &cfg.OVNRun} {
		if *run == "" {
			*run = dir
		}
		if err := os.MkdirAll(filepath.Join(cfg.Root, *run), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if cfg.NBSchema == "" {
		cfg.NBSchema = Schema
	}
	s := &Stack{Node: cfg.Node, cfg: cfg, dir: dir}
	s.env = append(os.Environ(),
		"OVS_RUNDIR="+cfg.OVSRun, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir, "OVS_SYSCONFDIR="+dir,
		"OVN_RUNDIR="+cfg.OVNRun, "OVN_LOGDIR="+dir, "OVN_DBDIR="+dir, "OVN_SYSCONFDIR="+dir)
	s.startSwitch(t)
	s.startOVN(t)
	return s
}

// startSwitch starts OVS with both bridges.
func (s *Stack) startSwitch(t testing.TB) {
	t.Helper()
	s.create(t, "conf.db", switchSchema)
	s.serve(t, "ovsdb-server (switch)", "conf.db", s.cfg.OVSRun, "db", nil)
	s.VSwitch(t, "--no-wait", "init")
	// A node without an address cannot be a tunnel's end; none is ever made.
	s.VSwitch(t, "--no-wait", "set", "Open_vSwitch", ".",
		"external_ids:system-id="+Chassis, "external_ids:hostname="+Chassis,
		"external_ids:ovn-remote=unix:"+s.socket("ovnsb_db.sock"),
		"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=127.0.0.1",
		"external_ids:ovn-bridge-datapath-type=netdev",
		"external_ids:ovn-bridge-mappings="+Physical+":"+ProviderBridge,
		"other_config:vlan-limit=0")
	s.start(t, "ovs-vswitchd", "ovs-vswitchd", "unix:"+filepath.Join(s.cfg.OVSRun, "db.sock"),
		"--unixctl="+filepath.Join(s.cfg.OVSRun, "ovs-vswitchd.ctl"))
	for _, bridge := range []string{Integration, ProviderBridge} {
		args := []string{"--may-exist", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"}
		if bridge == Integration {
			args = append(args, "fail-mode=secure")
		}
		s.VSwitch(t, args...)
	}
}

// startOVN starts OVN on top.
func (s *Stack) startOVN(t testing.TB) {
	t.Helper()
	s.create(t, "ovnnb.db", s.cfg.NBSchema)
	s.create(t, "ovnsb.db", southSchema)
	s.northArgs = slices.Clone(s.cfg.NBRemotes)
	s.StartNorth(t)
	s.serve(t, "ovsdb-server (south)", "ovnsb.db", s.cfg.OVNRun, "ovnsb_db", nil)
	s.NB(t, "init")
	s.South(t, "init")
	s.Northd = s.start(t, "ovn-northd", "ovn-northd",
		"--ovnnb-db="+s.NorthAddress(), "--ovnsb-db=unix:"+s.socket("ovnsb_db.sock"),
		"--unixctl="+s.socket("ovn-northd.ctl"))
	s.start(t, "ovn-controller", "ovn-controller", "unix:"+filepath.Join(s.cfg.OVSRun, "db.sock"))
	s.South(t, "wait-until", "chassis", Chassis, "name="+Chassis)
	s.Sync(t)
}

func (s *Stack) create(t testing.TB, db, schema string) {
	t.Helper()
	s.run(t, "ovsdb-tool", "create", filepath.Join(s.dir, db), schema)
}

// serve starts the server of a database, and waits for its socket.
func (s *Stack) serve(t testing.TB, what, db, run, base string, remotes []string) *rig.Process {
	t.Helper()
	socket := filepath.Join(run, base+".sock")
	seen := filepath.Join(s.cfg.Root, socket)
	// What a killed server left would be taken for the new one's.
	_ = os.Remove(seen)
	args := []string{filepath.Join(s.dir, db), "--remote=punix:" + socket, "--unixctl=" + filepath.Join(run, base+".ctl")}
	for _, r := range remotes {
		args = append(args, "--remote="+r)
	}
	p := s.start(t, what, "ovsdb-server", args...)
	awaitSocket(t, what, seen)
	return p
}

// awaitSocket waits until a server takes connections: its socket is there a moment
// earlier.
func awaitSocket(t testing.TB, what, path string) {
	t.Helper()
	if err := rig.AwaitFile(t.Context(), path, rig.Patience); err != nil {
		t.Fatalf("socket of %s: %v", what, err)
	}
	Await(t, what+" to listen", func() (bool, string) {
		c, err := net.Dial("unix", path)
		if err != nil {
			return false, err.Error()
		}
		return c.Close() == nil, ""
	})
}

// NorthAddress is the address of the north database for programs on the node.
func (s *Stack) NorthAddress() string { return "unix:" + s.socket("ovnnb_db.sock") }

// NorthFromOutside is its address for the test itself.
func (s *Stack) NorthFromOutside() string {
	return "unix:" + filepath.Join(s.cfg.Root, s.socket("ovnnb_db.sock"))
}

// Dir is the folder of the test's own: databases and logs, and the sockets unless
// the test named other folders.
func (s *Stack) Dir() string { return s.dir }

// StartNorth starts the server of the north database again after StopNorth, with
// all that was in it.
func (s *Stack) StartNorth(t testing.TB) {
	t.Helper()
	s.North = s.serve(t, "ovsdb-server (north)", "ovnnb.db", s.cfg.OVNRun, "ovnnb_db", s.northArgs)
}

// StopNorth ends the server of the north database.
func (s *Stack) StopNorth(t testing.TB) {
	t.Helper()
	s.North.Stop(t)
}

// PauseNorthd has northd compute nothing until ResumeNorthd.
func (s *Stack) PauseNorthd(t testing.TB) {
	t.Helper()
	s.Northctl(t, "pause")
}

// ResumeNorthd has northd compute again, and waits until it really does: it takes
// its lock of the south database at its own time, and sleeps on until something
// in a database changes, which Sync's request is.
func (s *Stack) ResumeNorthd(t testing.TB) {
	t.Helper()
	s.Northctl(t, "resume")
	Await(t, "northd to be active", func() (bool, string) {
		status := s.Northctl(t, "status")
		return strings.Contains(status, "active"), status
	})
	s.Sync(t)
}

// Northctl speaks to northd's control socket.
func (s *Stack) Northctl(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovn-appctl", append([]string{"--timeout=30", "-t", s.socket("ovn-northd.ctl")}, args...)...)
}

// Sync waits until the flows on the node follow the north database.
func (s *Stack) Sync(t testing.TB) {
	t.Helper()
	s.NB(t, "--wait=hv", "sync")
}

// NB runs ovn-nbctl.
func (s *Stack) NB(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovn-nbctl", append([]string{"--timeout=60", "--no-leader-only", "--db=" + s.NorthAddress()}, args...)...)
}

// South runs ovn-sbctl.
func (s *Stack) South(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovn-sbctl", append([]string{"--timeout=60", "--no-leader-only", "--db=unix:" + s.socket("ovnsb_db.sock")}, args...)...)
}

// VSwitch runs ovs-vsctl.
func (s *Stack) VSwitch(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-vsctl", append([]string{"--timeout=60", "--db=unix:" + filepath.Join(s.cfg.OVSRun, "db.sock")}, args...)...)
}

func (s *Stack) socket(name string) string { return filepath.Join(s.cfg.OVNRun, name) }

// command is a program on the node that has not been started.
func (s *Stack) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = s.env
	if s.cfg.Enter != nil {
		cmd = s.cfg.Enter(cmd)
	}
	return cmd
}

func (s *Stack) start(t testing.TB, what, program string, args ...string) *rig.Process {
	t.Helper()
	return s.Node.Start(t, fmt.Sprintf("%s in %s", what, s.Node.Name), s.command(program, args...))
}

// run executes a command of the laboratory on the node; the test ends when it
// fails.
func (s *Stack) run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := s.try(program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

func (s *Stack) try(program string, args ...string) (string, error) {
	var out []byte
	err := s.Node.Do(func() (err error) {
		out, err = s.command(program, args...).CombinedOutput()
		return err
	})
	return strings.TrimSpace(string(out)), err
}
