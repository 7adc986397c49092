package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// exported is the document of dir.
func exported(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := Export(&b, dir, bootedAt); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// folderWith is a state folder with records, which no engine uses.
func folderWith(t *testing.T, records ...engine.Record) string {
	t.Helper()
	dir := t.TempDir()
	s, _ := open(t, dir)
	for _, r := range records {
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// in returns the records of a state folder as the next engine finds them.
func in(t *testing.T, dir string) []engine.Record {
	t.Helper()
	s, logs := open(t, dir)
	defer s.Close()
	records := loaded(t, s)
	if logs.Len() > 0 {
		t.Errorf("the next engine says:\n%s", logs)
	}
	return records
}

// leased is a record as a document may hold it.
func leased(container string) engine.Record {
	r := recordOf(container)
	r.Workload = engine.Container
	return r
}

// TestDocument: what is exported comes back whole, in another folder.
func TestDocument(t *testing.T) {
	infinite, superseded := leased("b"), leased("c")
	infinite.Lease.Lifetime, infinite.Lease.T1, infinite.Lease.T2 = dhcp4.Infinite, dhcp4.Infinite, dhcp4.Infinite
	superseded.Phase, superseded.Lease, superseded.Setup = engine.Superseded, dhcp4.Lease{}, engine.Setup{}
	records := []engine.Record{leased("a"), infinite, superseded}
	from := folderWith(t, records...)
	running, _ := open(t, from) // export works beside an engine
	defer running.Close()
	doc := exported(t, from)

	var d document
	if err := json.Unmarshal(doc, &d); err != nil || d.Format != "dhcp-meta records" || d.Version != 1 || !d.Exported.Equal(bootedAt) || len(d.Records) != 3 {
		t.Errorf("document %+v, %v", d, err)
	}
	to := filepath.Join(t.TempDir(), "var", "lib")
	did, err := Import(to, bytes.NewReader(doc), false)
	if err != nil || did != (Imported{Added: 3}) {
		t.Fatalf("Import: %+v, %v", did, err)
	}
	if diff := cmp.Diff(records, in(t, to), byValue); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for path, want := range map[string]fs.FileMode{
		filepath.Join(to, folder): fs.ModeDir | 0o700, filepath.Join(to, folder, "a:net1.json"): 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, fi, err, want)
		}
	}
}

func TestExportOfNothing(t *testing.T) {
	doc := exported(t, folderWith(t))
	if !bytes.Contains(doc, []byte(`"records": []`)) {
		t.Errorf("document:\n%s", doc)
	}
	if did, err := Import(folderWith(t), bytes.NewReader(doc), false); err != nil || did != (Imported{}) {
		t.Errorf("Import: %+v, %v", did, err)
	}
	if _, err := Export(&bytes.Buffer{}, t.TempDir(), bootedAt); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Export of no state folder: %v", err)
	}
}

// A backup that lacks records must not look whole.
func TestExportOfACorruptRecord(t *testing.T) {
	dir := folderWith(t, leased("a"), leased("b"), leased("c"))
	for _, name := range []string{"a:net1.json", "c:net1.json"} {
		if err := os.WriteFile(filepath.Join(dir, folder, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	_, err := Export(&b, dir, bootedAt)
	if err == nil || !strings.Contains(err.Error(), "a:net1.json") || !strings.Contains(err.Error(), "c:net1.json") || b.Len() > 0 {
		t.Errorf("error %v, %d bytes written", err, b.Len())
	}
	if left, err := os.ReadDir(filepath.Join(dir, folder)); err != nil || len(left) != 3 {
		t.Errorf("Export changed the folder: %v, %v", left, err)
	}
}

func TestImportBesideOthers(t *testing.T) {
	old, kept := leased("a"), leased("kept")
	old.Lease.MTU = 9000
	doc := exported(t, folderWith(t, leased("a"), leased("b")))
	to := folderWith(t, old, kept)
	note := filepath.Join(to, folder, "README") // what an administrator or a crash has left stays
	if err := os.WriteFile(note, []byte("do not touch"), 0o644); err != nil {
		t.Fatal(err)
	}

	_, err := Import(to, bytes.NewReader(doc), false)
	if err == nil || !strings.Contains(err.Error(), "a:net1") || strings.Contains(err.Error(), "b:net1") {
		t.Errorf("Import over an existing record: %v", err)
	}
	if diff := cmp.Diff([]engine.Record{old, kept}, in(t, to), byValue); diff != "" {
		t.Errorf("a refused Import changed records (-want +got):\n%s", diff)
	}
	did, err := Import(to, bytes.NewReader(doc), true)
	if err != nil || did != (Imported{Added: 1, Replaced: 1}) {
		t.Fatalf("Import: %+v, %v", did, err)
	}
	if diff := cmp.Diff([]engine.Record{leased("a"), leased("b"), kept}, in(t, to), byValue); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile(note); err != nil || string(text) != "do not touch" {
		t.Errorf("note: %q, %v", text, err)
	}
	wantOnly(t, to, folder, lockName)
}

// wantOnly fails when the folder has other names in it.
func wantOnly(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s has %v, want %v", dir, got, want)
	}
}

func TestImportBesideAnEngine(t *testing.T) {
	doc := exported(t, folderWith(t, leased("a")))
	dir := t.TempDir()
	s, _ := open(t, dir)
	if _, err := Import(dir, bytes.NewReader(doc), false); !errors.Is(err, ErrLocked) {
		t.Errorf("error is %v, want %v", err, ErrLocked)
	}
	if got := loaded(t, s); len(got) > 0 {
		t.Errorf("records %v", got)
	}
}

// badDocuments are refused; the fuzz target begins with them.
func badDocuments(t testing.TB) map[string]struct{ doc, want string } {
	record := func(f func(*engine.Record)) string {
		r := leased("a")
		if f != nil {
			f(&r)
		}
		b, err := encode(r, bootedAt, testWall)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	whole := func(records ...string) string {
		return `{"format":"dhcp-meta records","version":1,"records":[` + strings.Join(records, ",") + `]}`
	}
	lease := func(f func(*dhcp4.Lease)) string { return whole(record(func(r *engine.Record) { f(&r.Lease) })) }
	return map[string]struct{ doc, want string }{
		"nothing":                {"", "unexpected end"},
		"no JSON":                {"records", "invalid character"},
		"a single record":        {record(nil), `format is ""`},
		"other version":          {`{"format":"dhcp-meta records","version":2,"records":[]}`, "version 2, this release knows"},
		"unknown key":            {`{"format":"dhcp-meta records","version":1,"records":[],"outbox":[]}`, "outbox"},
		"no records":             {`{"format":"dhcp-meta records","version":1}`, "records are missing"},
		"two documents":          {whole() + whole(), "after top-level value"},
		"cut off":                {whole(record(nil))[:300], "unexpected end"},
		"record of null":         {whole("null"), "records[0]: version is 0"},
		"record of a newer form": {whole(strings.Replace(record(nil), `"version": 3`, `"version": 99`, 1)), "records[0]: version is 99"},
		"the same twice":         {whole(record(nil), record(func(r *engine.Record) { r.Lease.MTU = 68 })), "records[1]: attachment a:net1 is that of records[0] too"},
		"way out of the folder":  {whole(record(func(r *engine.Record) { r.ContainerID = "../a" })), "not of the form"},
		"interface too long":     {whole(record(func(r *engine.Record) { r.IfName = "abcdefghijklmnop" })), "longer than"},
		"container too long":     {whole(record(func(r *engine.Record) { r.ContainerID = strings.Repeat("x", 250) })), "longer than"},
		"no network":             {whole(record(func(r *engine.Record) { r.Network = "" })), "no network"},
		"relative netns":         {whole(record(func(r *engine.Record) { r.Netns.Path = "pod" })), "no absolute path"},
		"short mac":              {whole(record(func(r *engine.Record) { r.HardwareAddr = net.HardwareAddr{2, 1} })), "no Ethernet address"},
		"long client id":         {whole(record(func(r *engine.Record) { r.ClientID = make([]byte, 256) })), "256 bytes"},
		"unknown phase":          {whole(record(func(r *engine.Record) { r.Phase = "happy" })), `phase of a:net1 is "happy"`},
		"leased without a lease": {whole(record(func(r *engine.Record) { r.Lease = dhcp4.Lease{} })), "lease of a:net1 (leased) has the address"},
		"IPv6 lease":             {lease(func(l *dhcp4.Lease) { l.Addr = netip.MustParsePrefix("fd00::1/64") }), "not IPv4"},
		"IPv6 setup":             {whole(record(func(r *engine.Record) { r.Setup.Addr = netip.MustParsePrefix("fd00::1/64") })), "not IPv4"},
		"no server":              {lease(func(l *dhcp4.Lease) { l.Server = netip.Addr{} }), "has the server"},
		"no start":               {lease(func(l *dhcp4.Lease) { l.Start = time.Time{} }), "has no start"},
		"no lifetime":            {lease(func(l *dhcp4.Lease) { l.Lifetime = 0 }), "not 0 < T1"},
		"T2 before T1":           {lease(func(l *dhcp4.Lease) { l.T1 = l.T2 + 1 }), "not 0 < T1"},
		"all problems at once": {whole(record(func(r *engine.Record) { r.Network = "" }), record(nil), record(func(r *engine.Record) { r.Phase = "" })),
			"records[0]: a:net1 has no network\nrecords[2]: containerID"},
	}
}

// TestImportBadDocument: nothing is there afterwards, not even the state folder.
func TestImportBadDocument(t *testing.T) {
	for name, tt := range badDocuments(t) {
		t.Run("bad "+name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			_, err := Import(dir, strings.NewReader(tt.doc), true)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q", err, tt.want)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the state folder was made: %v", err)
			}
		})
	}
}

// TestEveryPhaseIsImported holds check against the phases of the engine.
func TestEveryPhaseIsImported(t *testing.T) {
	source, err := os.ReadFile("../record.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, line := range strings.Split(string(source), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 4 || fields[1] != "Phase" || fields[2] != "=" {
			continue
		}
		found++
		r := leased("a")
		r.Phase = engine.Phase(strings.Trim(fields[3], `"`))
		if err := check(r); err != nil {
			t.Error(err)
		}
	}
	if found < 6 {
		t.Errorf("%d phases are in the source", found)
	}
}

// FuzzDocument: a document is refused, or each of its records is one that comes
// back from a file.
func FuzzDocument(f *testing.F) {
	for _, tt := range badDocuments(f) {
		f.Add([]byte(tt.doc))
	}
	good, err := encode(leased("a"), bootedAt, testWall)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"format":"dhcp-meta records","version":1,"exported":"2026-11-30T00:00:00Z","records":[` + string(good) + `]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := decodeDocument(data)
		if err != nil {
			return
		}
		names := map[string]bool{}
		for _, r := range records {
			name, err := fileName(r.AttachmentID)
			if err != nil || names[name] || filepath.Base(name) != name {
				t.Errorf("file name %q, %v, twice: %v", name, err, names[name])
			}
			names[name] = true
			b, err := encode(r, bootedAt, testWall)
			if err != nil {
				t.Fatalf("%s was let through and cannot be written: %v", r.AttachmentID, err)
			}
			if again, err := decode(b); err != nil || check(again) != nil {
				t.Errorf("%s does not come back: %v, %v", r.AttachmentID, err, check(again))
			}
		}
	})
}
