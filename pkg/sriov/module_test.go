package sriov

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dhcp-meta/dhcp-meta/pkg/sriov/sysfstest"
)

// B79, K69: the driver of a device follows from its modalias, whoever made it.
func TestB79K69DriverByModalias(t *testing.T) {
	for _, tt := range []struct{ name, id, driver, module string }{
		{"Intel E810", "8086:1889", "iavf", "iavf"},
		{"Intel 82576", "8086:10ca", "igbvf", "igbvf"},
		{"Nvidia ConnectX", "15b3:101e", "mlx5_core", "mlx5_core"},
		{"Broadcom", "14e4:16dc", "bnxt_en", "bnxt_en"},
		{"virtio", "1af4:1041", "virtio-pci", "virtio_pci"},
		{"a vendor of tomorrow", "dead:beef", "tomorrow", "tomorrow_net"},
	} {
		for _, loaded := range []bool{true, false} {
			t.Run(tt.name, func(t *testing.T) {
				tree := newTree(t)
				driver := sysfstest.Driver{Name: tt.driver, Module: tt.module, IDs: []string{tt.id}}
				if tt.id != "8086:10ca" {
					must(t, tree.AddModule(driver))
					if loaded {
						must(t, tree.Register(driver))
					}
				}
				must(t, tree.Add(sysfstest.Function{Address: "0000:05:00.1", ID: tt.id, Driver: "vfio-pci", Group: "20", PF: pf, VF: 5}))
				h := openTree(t, tree)
				d, err := h.Find("0000:05:00.1")
				must(t, err)
				got, err := h.EnsureDriver(d)
				if err != nil || got != (Driver{tt.driver, tt.module}) {
					t.Fatalf("driver: %v, %v", got, err)
				}
				// The kernel comes to the same.
				must(t, h.Unbind(d.Address))
				if name, err := h.Probe(d.Address); err != nil || name != tt.driver {
					t.Errorf("probe: %q, %v", name, err)
				}
			})
		}
	}
}

// B77, K70: a device that the kernel has no driver for, or may not get one for, is
// known before anything is written.
func TestB77K70NoDriver(t *testing.T) {
	iavf := sysfstest.Driver{Name: "iavf", Module: "iavf", IDs: []string{"8086:154c"}}
	vf := sysfstest.Function{Address: "0000:05:00.1", ID: "8086:154c", Driver: "vfio-pci", Group: "20", PF: pf, VF: 5}
	for _, tt := range []struct {
		name   string
		module bool
		files  map[string]string
		load   error
		err    string
	}{
		{"unknown", false, nil, nil, "no module of kernel 6.1.0-test claims it"},
		{"blacklisted", true, map[string]string{"etc/modprobe.d/sriov.conf": "# not here\nblacklist iavf\n"}, nil, "module iavf is blacklisted in /etc/modprobe.d/sriov.conf"},
		{"blacklisted by the distribution", true, map[string]string{"usr/lib/modprobe.d/a.conf": "blacklist iavf"}, nil, "module iavf is blacklisted in /usr/lib/modprobe.d/a.conf"},
		{"blacklisted at boot", true, map[string]string{"proc/cmdline": "ro module_blacklist=e100,iavf quiet\n"}, nil, "module iavf is blacklisted in the kernel's command line"},
		{"replaced by a command", true, map[string]string{"etc/modprobe.d/x.conf": "install iavf /bin/true\n"}, nil, "module iavf has a command of its own in /etc/modprobe.d/x.conf, which is not executed here"},
		{"not loadable", true, nil, unix.EPERM, "load module iavf: operation not permitted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := newTree(t)
			if tt.module {
				must(t, tree.AddModule(iavf))
			}
			for name, content := range tt.files {
				must(t, tree.Put(name, content))
			}
			must(t, tree.Add(vf))
			tree.Before = func(op sysfstest.Op) error {
				if op.Kind != "load" {
					t.Errorf("%+v was written", op)
				}
				return tt.load
			}
			h := openTree(t, tree)
			d, err := h.Find(vf.Address)
			must(t, err)
			_, err = h.EnsureDriver(d)
			if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), "0000:05:00.1 (8086:154c, modalias pci:v00008086d0000154C") {
				t.Errorf("got %v, want %q", err, tt.err)
			}
			if got := tree.Driver(vf.Address); got != "vfio-pci" {
				t.Errorf("the device is on %q", got)
			}
		})
	}
	t.Run("etc stands for usr", func(t *testing.T) {
		tree := newTree(t)
		must(t, tree.AddModule(iavf))
		must(t, tree.Put("usr/lib/modprobe.d/a.conf", "blacklist iavf"))
		must(t, tree.Put("etc/modprobe.d/a.conf", "# emptied by the operator"))
		must(t, tree.Add(vf))
		h := openTree(t, tree)
		d, err := h.Find(vf.Address)
		must(t, err)
		if got, err := h.EnsureDriver(d); err != nil || got.Name != "iavf" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("no modules here", func(t *testing.T) {
		tree := newTree(t)
		must(t, tree.Add(vf))
		h, err := Open(Config{Root: tree.Root, Release: "another", Write: tree.Write, LoadModule: tree.Load})
		must(t, err)
		d, err := h.Find(vf.Address)
		must(t, err)
		if _, err := h.EnsureDriver(d); err == nil || !strings.Contains(err.Error(), "needs the node's /lib/modules") {
			t.Errorf("got %v", err)
		}
	})
}

// A module comes after all that it needs, those that are there are left alone, and
// the operator's options go with theirs.
func TestModulesAreLoadedInOrder(t *testing.T) {
	tree := newTree(t)
	for _, m := range []string{"devlink", "libeth"} {
		must(t, tree.AddModule(sysfstest.Driver{Module: m}))
	}
	must(t, tree.AddModule(sysfstest.Driver{Module: "there"}))
	must(t, tree.Put("sys/module/there/refcnt", "1\n"))
	must(t, tree.AddModule(sysfstest.Driver{Name: "iavf", Module: "iavf", IDs: []string{"8086:154c"}}, "libeth", "there", "devlink"))
	must(t, tree.Put("etc/modprobe.d/o.conf", "options iavf debug=1 \\\n  mode=2\noptions lib-eth a=1\n"))
	must(t, tree.Put("proc/cmdline", "iavf.late=1\n"))
	must(t, tree.Add(sysfstest.Function{Address: "0000:05:00.1", ID: "8086:154c", Driver: "vfio-pci", Group: "20", PF: pf, VF: 5}))
	var loaded []string
	h, err := Open(Config{Root: tree.Root, Release: sysfstest.Release, Write: tree.Write, LoadModule: func(path, options string) error {
		loaded = append(loaded, strings.TrimSpace(moduleOf(path)+" "+options))
		return tree.Load(path, options)
	}})
	must(t, err)
	d, err := h.Find("0000:05:00.1")
	must(t, err)
	if _, err := h.EnsureDriver(d); err != nil {
		t.Fatal(err)
	}
	if want := []string{"devlink", "libeth", "iavf debug=1 mode=2 late=1"}; !slices.Equal(loaded, want) {
		t.Errorf("got %q, want %q", loaded, want)
	}
}

// A driver that is part of the kernel has no file; its aliases stand elsewhere.
func TestBuiltInDriver(t *testing.T) {
	tree := newTree(t)
	must(t, tree.Put("lib/modules/"+sysfstest.Release+"/modules.builtin.modinfo",
		"iavf.description=x\x00iavf.alias=pci:v00008086d0000154Csv*sd*bc*sc*i*\x00"))
	must(t, tree.Register(sysfstest.Driver{Name: "iavf", Module: "iavf", IDs: []string{"8086:154c"}}))
	must(t, tree.Add(sysfstest.Function{Address: "0000:05:00.1", ID: "8086:154c", Driver: "vfio-pci", Group: "20", PF: pf, VF: 5}))
	h := openTree(t, tree)
	d, err := h.Find("0000:05:00.1")
	must(t, err)
	if got, err := h.EnsureDriver(d); err != nil || got.Name != "iavf" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestMatch(t *testing.T) {
	const alias = "pci:v00008086d000010CAsv00001AF4sd00001100bc02sc00i00"
	for pattern, want := range map[string]bool{
		"pci:v00008086d000010CAsv*sd*bc*sc*i*": true, "pci:v00008086d*sv*sd*bc*sc*i*": true, "pci:v*d*sv*sd*bc02sc00i*": true, alias: true, "*": true,
		"pci:v00008086d000010C9sv*sd*bc*sc*i*": false, "vfio_pci:v*d*sv*sd*bc*sc*i*": false, "pci:v*d*sv*sd*bc01sc*i*": false, "": false,
		"pci:v00008086d000010C[9A-C]*": true, "pci:v00008086d000010C[9B-F]*": false, "pci:v00008086d000010C[0-9A-F]*": true, "pci:v0000808?d*": true, "pci:v00008086d000010C?sv": false,
		"pci:v00008086d000010C[": false, "pci:*i00": true, "pci:*i01": false,
	} {
		if got := match(pattern, alias); got != want {
			t.Errorf("%q: got %v", pattern, got)
		}
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("pci:v00008086d000010CAsv*sd*bc*sc*i*", "pci:v00008086d000010CAsv00001AF4sd00001100bc02sc00i00")
	f.Add("a*[b-", "ab")
	f.Add("[]", "[]")
	f.Fuzz(func(t *testing.T, pattern, alias string) {
		match(pattern, alias)
		if !strings.ContainsAny(pattern, "*?[") && match(pattern, alias) != (pattern == alias) {
			t.Errorf("a pattern without signs matches only itself: %q, %q", pattern, alias)
		}
		if !match("*", alias) || !match(strings.NewReplacer("*", "?", "[", "?").Replace(alias), alias) {
			t.Errorf("%q is not matched by what matches all", alias)
		}
	})
}

func FuzzModules(f *testing.F) {
	const alias = "pci:v00008086d000010CAsv00001AF4sd00001100bc02sc00i00"
	f.Add([]byte("alias pci:v00008086d000010CAsv*sd*bc*sc*i* igbvf\n"), []byte("kernel/net/igbvf.ko.xz: kernel/a.ko kernel/b.ko\n"), []byte("blacklist igbvf\noptions a b\\\nc\n"))
	f.Add([]byte("igbvf.alias=pci:*\x00"), []byte(":\n"), []byte("install x\nalias pci:* igb-vf"))
	f.Fuzz(func(t *testing.T, aliases, deps, conf []byte) {
		named, _ := claims(strings.NewReader(string(aliases)), alias)
		for _, m := range append(named, builtinClaims(aliases, alias)...) {
			if list, err := files(strings.NewReader(string(deps)), m); err == nil && list != nil && moduleOf(list[len(list)-1]) != m {
				t.Errorf("%s is not the last of %q", m, list)
			}
		}
		m := newModprobe()
		m.parse(strings.NewReader(string(conf)), "here")
		m.parseCommandLine(string(conf))
		for name := range m.barred {
			if m.refuses(name) == "" {
				t.Errorf("%q is blacklisted and not refused", name)
			}
		}
	})
}

func TestModprobe(t *testing.T) {
	m := newModprobe()
	must(t, m.parse(strings.NewReader("#blacklist a\nblacklist b-c\n\noptions d e=1 f\nalias pci:v1* g-h\ninstall i /bin/false\nsoftdep a pre: b\nblacklist\n"), "x"))
	want := &modprobe{barred: map[string]string{"b_c": "x"}, commands: map[string]string{"i": "x"},
		options: map[string][]string{"d": {"e=1", "f"}}, aliases: []alias{{"pci:v1*", "g_h"}}}
	if diff := cmp.Diff(want, m, cmp.AllowUnexported(modprobe{}, alias{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
