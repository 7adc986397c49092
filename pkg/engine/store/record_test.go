package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// netip's types have unexported fields, and their == is what they mean.
var byValue = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func testRecord() engine.Record {
	return engine.Record{
		Attachment: engine.Attachment{
			AttachmentID: engine.AttachmentID{ContainerID: "0a1b2c3d4e5f", IfName: "net1"},
			Network:      "site",
			Pod:          engine.Pod{Namespace: "default", Name: "web-0", UID: "5f1c"},
			NAD:          "default/site", Wrapped: "ovn-k8s-cni-overlay", DeviceID: "0000:3b:02.4", IPAM: true,
			Netns: engine.Netns{Path: "/run/netns/pod", Cookie: 1<<63 + 1},
			DHCP:  json.RawMessage(`{"hostname":"<web>","timeout":"30s"}`),
		},
		Effective: json.RawMessage(`{"hostname":"<web>","timeout":"30s","address":"10.77.0.50"}`),
		OVN:       true, VFIO: true,
		Phase: engine.Leased, BootID: "2f1e9c6e-5b2a-4f0e-9d5b-3d1c0e6f7a88", Workload: engine.VM,
		HardwareAddr: net.HardwareAddr{2, 0, 0x5e, 0, 0x53, 1},
		ClientID:     []byte{1, 2, 0, 0x5e, 0, 0x53, 1},
		Lease: dhcp4.Lease{
			Addr: netip.MustParsePrefix("10.77.0.50/24"), Server: netip.MustParseAddr("10.77.0.1"),
			Routers: []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")},
			Routes:  []dhcp4.Route{{Dst: netip.MustParsePrefix("10.9.0.0/16"), Gateway: netip.MustParseAddr("10.77.0.1")}, {Dst: netip.MustParsePrefix("10.10.0.0/16")}},
			DNS:     []netip.Addr{netip.MustParseAddr("10.77.0.3")}, Domain: "site.example", Search: []string{"a.example", "b.example"},
			NTP: []netip.Addr{netip.MustParseAddr("10.77.0.4")}, MTU: 1400,
			Start: time.Unix(0, 3_600_000_000_007), Lifetime: time.Hour, T1: 30 * time.Minute, T2: 52*time.Minute + 30*time.Second,
		},
		Setup: engine.Setup{
			Addr:   netip.MustParsePrefix("10.77.0.50/24"),
			Routes: []engine.Route{{Dst: netip.MustParsePrefix("10.9.0.0/16"), Gateway: netip.MustParseAddr("10.77.0.1"), Metric: 100}},
			MTU:    1400, PriorMTU: 1500,
		},
		Adopted: true,
	}
}

// In the tests the machine was booted at bootedAt, and it is an hour later.
var bootedAt = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func testWall(boot time.Time) time.Time { return bootedAt.Add(time.Duration(boot.UnixNano())) }

func testEncode(t *testing.T, r engine.Record) []byte {
	t.Helper()
	b, err := encode(r, bootedAt.Add(time.Hour), testWall)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRecordFile holds the format still: a diff here needs a new version.
func TestRecordFile(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("testdata", "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(testEncode(t, testRecord()))); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	got, err := decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(testRecord(), got, byValue); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// TestRecordFileOfOlderVersions: an upgrade costs no lease.
func TestRecordFileOfOlderVersions(t *testing.T) {
	for file, without := range map[string]func(*engine.Record){
		"record-1.json": func(r *engine.Record) {
			r.NAD, r.Wrapped, r.DeviceID, r.Effective, r.OVN, r.VFIO = "", "", "", nil, false, false
			r.IPAM, r.Adopted = false, false
		},
		"record-2.json": func(r *engine.Record) { r.IPAM, r.Adopted = false, false },
	} {
		t.Run(file, func(t *testing.T) {
			old, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(old)
			if err != nil {
				t.Fatal(err)
			}
			want := testRecord()
			without(&want)
			if diff := cmp.Diff(want, got, byValue); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
			if now := testEncode(t, got); !bytes.Contains(now, []byte(`"version": 3`)) {
				t.Errorf("written again it is\n%s", now)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	vary := func(f func(*engine.Record)) engine.Record {
		r := testRecord()
		f(&r)
		return r
	}
	for _, tt := range []struct {
		name string
		r    engine.Record
	}{
		{"OK container", vary(func(r *engine.Record) { r.Workload = engine.Container })},
		{"OK infinite lease", vary(func(r *engine.Record) {
			r.Lease.Lifetime, r.Lease.T1, r.Lease.T2 = dhcp4.Infinite, dhcp4.Infinite, dhcp4.Infinite
		})},
		{"OK the longest finite lease", vary(func(r *engine.Record) { r.Lease.Lifetime = 0xfffffffe * time.Second })},
		{"OK no lease", vary(func(r *engine.Record) { r.Phase, r.Lease, r.Setup = engine.Superseded, dhcp4.Lease{}, engine.Setup{} })},
		{"OK lease at the moment of boot", vary(func(r *engine.Record) { r.Lease.Start = time.Unix(0, 0) })},
		{"OK no pod, no dhcp object, no client id", vary(func(r *engine.Record) { r.Pod, r.DHCP, r.ClientID = engine.Pod{}, nil, nil })},
		{"OK empty dhcp object", vary(func(r *engine.Record) { r.DHCP = json.RawMessage("{}") })},
		{"OK empty effective object", vary(func(r *engine.Record) { r.Effective = json.RawMessage("{}") })},
		{"OK nothing added by the cluster", vary(func(r *engine.Record) {
			r.Effective, r.NAD, r.Wrapped, r.DeviceID, r.OVN, r.VFIO = nil, "", "", "", false, false
		})},
		{"OK long hardware address", vary(func(r *engine.Record) { r.HardwareAddr = make(net.HardwareAddr, 20) })},
		{"OK large numbers in the dhcp object", vary(func(r *engine.Record) { r.DHCP = json.RawMessage(`{"n":12345678901234567890.10}`) })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decode(testEncode(t, tt.r))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.r, got, byValue); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryField fills all fields there are with something and looks whether
// each comes back: one that the engine adds and this package forgets is found.
func TestEveryField(t *testing.T) {
	var want engine.Record
	n := 0
	fill(t, reflect.ValueOf(&want).Elem(), "Record", &n)
	got, err := decode(testEncode(t, want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if n < 35 {
		t.Errorf("filled %d fields, a record has more", n)
	}
}

// fill gives v, and all in it, a value that is not zero and, as far as its type
// allows, not the same as another's. n counts them.
func fill(t *testing.T, v reflect.Value, path string, n *int) {
	t.Helper()
	*n++
	set := func(x any) { v.Set(reflect.ValueOf(x)) }
	switch v.Interface().(type) {
	case netip.Addr:
		set(netip.AddrFrom4([4]byte{10, 0, 0, byte(*n)}))
		return
	case netip.Prefix:
		set(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(*n)}), 24))
		return
	case time.Time:
		set(time.Unix(0, int64(*n)))
		return
	case json.RawMessage:
		set(json.RawMessage(fmt.Sprintf(`{"n":%d}`, *n)))
		return
	case engine.Workload:
		set(engine.VM)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), path+"."+v.Type().Field(i).Name, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), path+"[0]", n)
		fill(t, v.Index(1), path+"[1]", n)
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		t.Fatalf("%s: this test cannot fill a %v", path, v.Type())
	}
}

func TestEncodeBad(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*engine.Record)
		want   string
	}{
		{"bad start outside of boot time", func(r *engine.Record) { r.Lease.Start = time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC) }, "no boot time"},
		{"bad dhcp object", func(r *engine.Record) { r.DHCP = json.RawMessage("{") }, "JSON"},
		{"bad workload", func(r *engine.Record) { r.Workload = 99 }, "workload 99"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := testRecord()
			tt.change(&r)
			if _, err := encode(r, bootedAt, testWall); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q in it", err, tt.want)
			}
		})
	}
}

// edits change the good file into one that decode must refuse.
var edits = []struct{ name, old, new, want string }{
	{"bad other version", `"version": 3`, `"version": 4`, "version is 4"},
	{"bad effective object", `"effectiveDHCP": {`, `"effectiveDHCP": {{`, "invalid character"},
	{"bad no version", `"version": 3,`, ``, "version is 0"},
	{"bad no container", `"containerID": "0a1b2c3d4e5f"`, `"containerID": ""`, "missing"},
	{"bad no phase", `"phase": "leased",`, ``, "missing"},
	{"bad unknown field", `"phase"`, `"colour": "red", "phase"`, "colour"},
	{"bad workload", `"vm"`, `"toaster"`, "toaster"},
	{"bad address", `"10.77.0.50/24"`, `"10.77.0.50/33"`, "10.77.0.50/33"},
	{"bad duration", `"1h0m0s"`, `"soon"`, "soon"},
	{"bad mac", `"02:00:5e:00:53:01"`, `"02-00-5e-00-53-01"`, "mac"},
	{"bad client id", `"0102005e005301"`, `"01x"`, "invalid byte"},
	{"bad cookie", `"9223372036854775809"`, `"-1"`, "cookie"},
}

func TestDecodeBad(t *testing.T) {
	good := string(testEncode(t, testRecord()))
	try := func(name, text, want string) {
		t.Run(name, func(t *testing.T) {
			if _, err := decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want %q in it", err, want)
			}
		})
	}
	for _, tt := range edits {
		if !strings.Contains(good, tt.old) {
			t.Fatalf("%s: the good file has no %s", tt.name, tt.old)
		}
		try(tt.name, strings.Replace(good, tt.old, tt.new, 1), tt.want)
	}
	try("bad empty", "", "unexpected end")
	try("bad zeros, as after a loss of power", strings.Repeat("\x00", 100), "invalid character")
	try("bad half", good[:len(good)/2], "unexpected end")
	try("bad two", good+good, "after top-level value")
	try("bad other JSON", "[]", "cannot unmarshal")
}

// FuzzRecord: what decode accepts is the same after encode and decode.
func FuzzRecord(f *testing.F) {
	good := testEncode(&testing.T{}, testRecord())
	f.Add(good)
	f.Add(bytes.Replace(good, []byte(`"version": 3`), []byte(`"version": 1`), 1))
	for _, tt := range edits {
		f.Add(bytes.Replace(good, []byte(tt.old), []byte(tt.new), 1))
	}
	f.Add([]byte(`{"version":1,"attachment":{"containerID":"a","ifName":"b"},"phase":"seeking","bootID":"c","lease":{"lifetime":"infinite"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		once, err := encode(r, bootedAt, testWall)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := decode(once)
		if err != nil {
			t.Fatalf("decode what was encoded: %v\n%s", err, once)
		}
		if diff := cmp.Diff(r, again, byValue); diff != "" {
			t.Errorf("record (-first +second):\n%s", diff)
		}
		twice, err := encode(again, bootedAt, testWall)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("second encoding (%v) differs:\n%s\n%s", err, once, twice)
		}
	})
}
