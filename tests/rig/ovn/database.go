package ovn

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Database is a north database alone, without anything that reads it.
type Database struct {
	*rig.Process
	// Address is where it is.
	Address string
	dir     string
	n       *rig.Netns
	name    string
	options []string
}

// StartDatabase serves an empty north database with a schema, with options added to
// the server's own: further remotes, files for TLS.
func StartDatabase(t testing.TB, n *rig.Netns, schema []byte, options ...string) *Database {
	t.Helper()
	d := newDatabase(t, "nb")
	file := filepath.Join(d.dir, "nb.ovsschema")
	if err := os.WriteFile(file, schema, 0o600); err != nil {
		t.Fatal(err)
	}
	d.tool(t, "ovsdb-tool", "create", d.file("nb.db"), file)
	d.serve(t, n, "nb", options...)
	d.NB(t, "init")
	return d
}

// StartCluster serves one north database by several servers.
func StartCluster(t testing.TB, n *rig.Netns, servers int) []*Database {
	t.Helper()
	var all []*Database
	for i := range servers {
		d := newDatabase(t, "nb")
		raft := "unix:" + d.file("raft.sock")
		if i == 0 {
			d.tool(t, "ovsdb-tool", "create-cluster", d.file("nb.db"), Schema, raft)
		} else {
			d.tool(t, "ovsdb-tool", "join-cluster", d.file("nb.db"), "OVN_Northbound", raft, "unix:"+all[0].file("raft.sock"))
		}
		d.serve(t, n, fmt.Sprintf("nb %d", i))
		all = append(all, d)
		d.tool(t, "ovsdb-client", "--timeout=30", "wait", d.Address, "OVN_Northbound", "connected")
	}
	d := all[0]
	d.NB(t, "init")
	return all
}

func newDatabase(t testing.TB, name string) *Database {
	t.Helper()
	dir, err := os.MkdirTemp("", "dmovn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &Database{dir: dir}
	d.Address = "unix:" + d.file(name+".sock")
	return d
}

// serve starts the server.
func (d *Database) serve(t testing.TB, n *rig.Netns, name string, options ...string) {
	t.Helper()
	d.n, d.name, d.options = n, name, options
	d.StartAgain(t)
}

// StartAgain starts the server after it was ended, with all that was in it.
func (d *Database) StartAgain(t testing.TB) {
	t.Helper()
	socket := strings.TrimPrefix(d.Address, "unix:")
	_ = os.Remove(socket)
	args := append([]string{d.file("nb.db"), "--remote=punix:" + socket, "--unixctl=" + d.file("nb.ctl")}, d.options...)
	d.Process = d.n.Start(t, "ovsdb-server ("+d.name+")", exec.Command("ovsdb-server", args...))
	awaitSocket(t, d.name, socket)
}

// Leads tells whether the server leads its cluster.
func (d *Database) Leads(t testing.TB) bool {
	t.Helper()
	return strings.Contains(d.tool(t, "ovs-appctl", "--timeout=30", "-t", d.file("nb.ctl"), "cluster/status", "OVN_Northbound"), "Role: leader")
}

// NB runs ovn-nbctl.
func (d *Database) NB(t testing.TB, args ...string) string {
	t.Helper()
	return d.tool(t, "ovn-nbctl", append([]string{"--timeout=60", "--no-leader-only", "--db=" + d.Address}, args...)...)
}

// Transact adds ports to a switch of their own, many at once.
func (d *Database) Transact(t testing.TB, ports []PortSpec) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(`["OVN_Northbound"`)
	var names []string
	for i, p := range ports {
		row := fmt.Sprintf("p%d", i)
		names = append(names, fmt.Sprintf(`["named-uuid",%q]`, row))
		fmt.Fprintf(&b, `,{"op":"insert","table":"Logical_Switch_Port","uuid-name":%q,"row":{"name":%q,"addresses":%q,"port_security":%q,`+
			`"options":["map",[["iface-id-ver",%q]]],"external_ids":["map",[["pod","true"],["namespace",%q],["k8s.ovn.org/nad",%q],["k8s.ovn.org/network",%q]]]}}`,
			row, p.Name(), p.Values(), p.Values(), p.UID, p.Namespace, p.NADKey(), p.Network)
	}
	fmt.Fprintf(&b, `,{"op":"insert","table":"Logical_Switch","row":{"name":"sw-%s","ports":["set",[%s]]}}]`, ports[0].Pod, strings.Join(names, ","))
	if out := d.tool(t, "ovsdb-client", "--timeout=60", "transact", d.Address, b.String()); strings.Contains(out, `"error"`) {
		t.Fatalf("transact: %s", out)
	}
}

func (d *Database) file(name string) string { return filepath.Join(d.dir, name) }

func (d *Database) tool(t testing.TB, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %.500s: %v\n%s", program, args, err, out)
	}
	return strings.TrimSpace(string(out))
}
