package ovn

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/ovn"
)

// awaitLimited waits until the writer says that it has no database, or has one.
func (w *writer) awaitLimited(t testing.TB, limited bool) error {
	t.Helper()
	var err error
	ovn.Await(t, fmt.Sprintf("limited to be %v", limited), func() (bool, string) {
		err = w.Limited()
		return (err != nil) == limited, fmt.Sprint(err)
	})
	return err
}

// While the database is away a call says so after a moment, and what it wanted is
// written when the database is back, without anybody asking again.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	w.awaitLimited(t, false)
	s.StopNorth(t)
	err := w.awaitLimited(t, true)
	for _, word := range []string{"is away", s.NorthAddress()} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("limited does not say %q: %v", word, err)
		}
	}
	w.log.Await(t, "word of the outage", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "level=WARN") && strings.Contains(line, "north database of OVN is away")
	})
	begin := time.Now()
	err = w.Publish(patient(t), s.lease("10.77.0.50"))
	if err == nil || !strings.Contains(err.Error(), "is away") {
		t.Errorf("publish without a database: %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("publish without a database took %v", took)
	}
	ovn.Await(t, "the pending port to be counted", func() (bool, string) {
		n := w.value(t, "dhcp_engine_ovn_pending_ports", "")
		return n == 1 && w.value(t, "dhcp_engine_ovn_connected", "") == 0, fmt.Sprint(n)
	})
	s.StartNorth(t)
	s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
	w.awaitLimited(t, false)
	ovn.Await(t, "no port to be pending", func() (bool, string) {
		n := w.value(t, "dhcp_engine_ovn_pending_ports", "")
		return n == 0, fmt.Sprint(n)
	})

	// What another writer does while the connection is away is found too.
	s.StopNorth(t)
	w.awaitLimited(t, true)
	s.StartNorth(t)
	s.WriteLSP(t, s.port)
	s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
}

// A server that hangs, rather than goes, is left too.
func TestDatabaseHangs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.writer(t)
	w.awaitLimited(t, false)
	s.North.Signal(t, syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := w.Publish(ctx, s.lease("10.77.0.50")); err == nil {
		t.Error("a database that does not answer took a lease")
	}
	if err := w.awaitLimited(t, true); !strings.Contains(err.Error(), s.NorthAddress()) {
		t.Errorf("limited: %v", err)
	}
	s.North.Signal(t, syscall.SIGCONT)
	s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
}

// auto takes the socket that OVN-Kubernetes has on the node, whenever it comes, and
// is content without one while nobody has need of it.
func TestAutoFindsTheSocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"run/ovn-ic", "run/ovn"} {
		root := t.TempDir()
		if len(root) > 60 {
			root = s.Dir() + "/" + strings.ReplaceAll(path, "/", ".")
		}
		w := startWriter(t, ovnnb.Config{Address: ovnnb.Auto, Root: root})
		if err := w.Limited(); err != nil {
			t.Errorf("limited although nobody has need of OVN: %v", err)
		}
		if err := w.Publish(patient(t), s.lease("10.77.0.50")); err == nil || !strings.Contains(err.Error(), "/run/ovn/ovnnb_db.sock") {
			t.Errorf("publish without a socket: %v", err)
		}
		w.awaitLimited(t, true)
		folder := filepath.Join(root, path)
		must(t, "folder", os.MkdirAll(folder, 0o755))
		must(t, "socket", os.Symlink(strings.TrimPrefix(s.NorthAddress(), "unix:"), filepath.Join(folder, "ovnnb_db.sock")))
		w.awaitLimited(t, false)
		s.awaits(t, s.port.Name(), s.port.MAC.String()+" 10.77.0.50", s.auto("10.77.0.50"))
		w.stop()
		s.WriteLSP(t, s.port)
	}
}

// Schemas of other versions have other columns and tables; the ones that are used
// are in all of them.
func TestSchemasOfOtherVersions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(db, port object){
		"more columns and tables": func(db, port object) {
			port["columns"].(object)["a_new_one"] = object{"type": object{"key": "string", "min": 0.0, "max": "unlimited"}}
			db["tables"].(object)["A_New_Table"] = object{"columns": object{"name": object{"type": "string"}}, "isRoot": true}
		},
		"fewer columns and tables": func(db, port object) {
			for _, column := range []string{"mirror_rules", "ha_chassis_group", "dhcpv6_options", "parent_name", "tag_request"} {
				delete(port["columns"].(object), column)
			}
			delete(db["tables"].(object), "Mirror")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := rig.NewNetns(t, "db")
			text, err := os.ReadFile(ovn.Schema)
			must(t, "schema", err)
			var db object
			must(t, "schema", json.Unmarshal(text, &db))
			change(db, db["tables"].(object)["Logical_Switch_Port"].(object))
			delete(db, "cksum")
			changed, err := json.Marshal(db)
			must(t, "schema", err)
			if bytes.Equal(text, changed) {
				t.Fatal("the schema is the same")
			}
			// Northd cannot read the schema that lacks columns, but it need not: this
			// is about the database alone.
			d := ovn.StartDatabase(t, n, changed)
			w := startWriter(t, ovnnb.Config{Address: d.Address})
			p := ovn.PortSpec{
				Switch: "sw", Network: netName, NAD: nad, Namespace: "shop", Pod: "web-0", UID: "u-0", MAC: randomMAC(t),
			}
			d.NB(t, "--", "--id=@p", "create", "logical_switch_port", "name="+p.Name(), fmt.Sprintf("addresses=%q", p.Values()),
				fmt.Sprintf("port_security=%q", p.Values()), "options:iface-id-ver=u-0", `external_ids:"k8s.ovn.org/nad"="shop/office-lan"`,
				"--", "create", "logical_switch", "name=sw", "ports=@p")
			a := attachmentOf(&rig.Sandbox{ID: "c1"}, p, ifName)
			must(t, "publish", w.Publish(patient(t), leaseOf(a, p.MAC, "10.77.0.50", engine.Container, network.PortSecurityMAC)))
			if out := d.NB(t, "--bare", "--columns=addresses", "list", "logical_switch_port", p.Name()); out != p.MAC.String()+" 10.77.0.50" {
				t.Errorf("addresses are %q", out)
			}
		})
	}
}

type object = map[string]any

// Memory is taken for the pods of the node, not for those of the cluster, whose
// ports are in the same database where OVN-Kubernetes has one for all.
func TestMemoryFollowsTheNode(t *testing.T) {
	n := rig.NewNetns(t, "db")
	text, err := os.ReadFile(ovn.Schema)
	must(t, "schema", err)
	d := ovn.StartDatabase(t, n, text)
	w := startWriter(t, ovnnb.Config{Address: d.Address})
	w.awaitLimited(t, false)
	own := func(i int) (ovn.PortSpec, engine.Attachment) {
		p := ovn.PortSpec{
			Network: netName, NAD: nad, Namespace: "shop", Pod: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("u-%d", i), MAC: randomMAC(t),
		}
		return p, attachmentOf(&rig.Sandbox{ID: fmt.Sprintf("c%d", i)}, p, ifName)
	}
	add := func(ports []ovn.PortSpec) {
		d.Transact(t, ports)
	}
	var mine []ovn.PortSpec
	for i := range 20 {
		p, _ := own(i)
		mine = append(mine, p)
	}
	add(mine)
	for i, p := range mine {
		_, a := own(i)
		must(t, "publish", w.Publish(patient(t), leaseOf(a, p.MAC, fmt.Sprintf("10.77.0.%d", 50+i), engine.Container, network.PortSecurityAuto)))
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const others, batch = 6000, 200
	for i := 0; i < others; i += batch {
		var ports []ovn.PortSpec
		for j := range batch {
			p, _ := own(1000 + i + j)
			ports = append(ports, p)
		}
		add(ports)
	}
	// The writer has seen all that it will see when it has seen what came last.
	last, a := own(99)
	add([]ovn.PortSpec{last})
	must(t, "publish the last", w.Publish(patient(t), leaseOf(a, last.MAC, "10.77.0.200", engine.Container, network.PortSecurityAuto)))
	grown := heap() - before
	t.Logf("%d ports of other nodes took %d bytes", others, grown)
	if grown > others*100 {
		t.Errorf("the heap has grown by %d bytes for %d ports of other nodes", grown, others)
	}
}

// Pods that are gone leave no monitor, and connections that have ended no goroutine.
func TestNothingPilesUp(t *testing.T) {
	n := rig.NewNetns(t, "db")
	text, err := os.ReadFile(ovn.Schema)
	must(t, "schema", err)
	d := ovn.StartDatabase(t, n, text)
	w := startWriter(t, ovnnb.Config{Address: d.Address})
	w.awaitLimited(t, false)
	const pods = 10
	for i := range pods {
		p, a := bare(t, d, fmt.Sprintf("web-%d", i))
		must(t, "publish", w.Publish(patient(t), leaseOf(a, p.MAC, "10.77.0.50", engine.Container, network.PortSecurityAuto)))
	}
	for i := range pods {
		d.NB(t, "ls-del", fmt.Sprintf("sw-web-%d", i))
		w.Forget(attachmentOf(&rig.Sandbox{ID: fmt.Sprintf("c-web-%d", i)}, ovn.PortSpec{
			Namespace: "shop", Pod: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("uid-web-%d", i), NAD: nad,
		}, ifName))
	}
	w.log.Await(t, "end of the last monitor", 0, rig.Patience, func(line string) bool {
		return strings.Contains(line, "monitors of pods that are gone have ended") && strings.Contains(line, "left=0 ")
	})

	p, a := bare(t, d, "web-99")
	must(t, "publish", w.Publish(patient(t), leaseOf(a, p.MAC, "10.77.0.50", engine.Container, network.PortSecurityAuto)))
	reconnect := func() {
		d.Stop(t)
		w.awaitLimited(t, true)
		d.StartAgain(t)
		w.awaitLimited(t, false)
		d.NB(t, "lsp-set-addresses", p.Name(), p.MAC.String())
		awaitAddresses(t, d, p, p.MAC.String()+" 10.77.0.50")
	}
	reconnect()
	goroutines := runtime.NumGoroutine()
	for range 3 { // five repairs are one too many to be no fight
		reconnect()
	}
	ovn.Await(t, "goroutines of old connections to end", func() (bool, string) {
		now := runtime.NumGoroutine()
		return now <= goroutines, fmt.Sprintf("%d, were %d", now, goroutines)
	})
}
