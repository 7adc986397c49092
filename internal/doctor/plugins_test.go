package doctor

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/install"
)

// fakeShelf has files by their path.
type fakeShelf map[string]program

// folder: that of the plugins is there always, others are while they have a file.
func (s fakeShelf) folder(dir string) bool {
	return filepath.Clean(dir) == bin || len(s.names(dir)) > 0
}

func (s fakeShelf) names(dir string) (names []string) {
	for path := range s {
		if filepath.Dir(path) == dir {
			names = append(names, filepath.Base(path))
		}
	}
	slices.Sort(names)
	return names
}

func (s fakeShelf) find(path string) (program, bool) {
	p, ok := s[path]
	p.path = path
	return p, ok
}

const (
	bin   = "/opt/cni/bin"
	front = bin + "/" + wrappers
	set   = bin + "/" + wrapped
	ovn   = ovnType
)

var (
	own    = program{ours: true, sameBuild: true, executable: true}
	theirs = program{executable: true}
)

// Nobody is told to say to Multus what it was told.
func TestRemedies(t *testing.T) {
	well := fakeShelf{bin + "/dhcp-meta": own, bin + "/" + ovn: theirs, front + "/" + ovn: own, bin + "/macvlan": theirs}
	localnet := definition{name: "a/localnet", ours: true, interposed: []string{ovn}, plugins: []pluginConf{{Type: ovn}}}
	office := definition{name: "a/office", ours: true, plugins: []pluginConf{{Type: ourType}, {Type: "macvlan"}}}
	for name, tt := range map[string]struct {
		without  string
		search   []string
		id       ID
		says, no string
	}{
		"nothing behind":        {bin + "/" + ovn, []string{front, bin}, BehindMissing, "restart its pod", "CNI_PATH"},
		"nothing behind, slash": {bin + "/" + ovn, []string{front, bin + "/"}, BehindMissing, "restart its pod", "CNI_PATH"},
		"behind not searched":   {"", []string{front}, BehindMissing, "CNI_PATH=" + bin, "binDir"},
		"ours not searched":     {"", []string{front}, PluginMissing, "CNI_PATH=" + bin, "delete"},
		"macvlan not searched":  {"", []string{front}, DelegateMissing, "CNI_PATH=" + bin, "misspelt"},
		"wrappers not searched": {"", []string{bin}, MultusSearchPath, "binDir", "--wrap"},
		"neither":               {front + "/" + ovn, []string{bin}, MultusSearchPath, "--wrap " + ovn + ", and set \"binDir\"", "delegate"},
		"no wrapper":            {front + "/" + ovn, []string{front, bin}, MultusSearchPath, "--wrap " + ovn, "binDir"},
		"wrappers gone":         {front + "/" + ovn, []string{front, bin}, SearchPathGone, "name " + bin + " in its place", "mount"},
	} {
		t.Run(name, func(t *testing.T) {
			s := maps.Clone(well)
			delete(s, tt.without)
			j := judgement{shelf: s, binDir: bin, search: tt.search, known: true, networks: []definition{localnet, office}}
			found := j.run()
			i := slices.IndexFunc(found, func(f Finding) bool { return f.ID == tt.id })
			if i < 0 || !strings.Contains(found[i].Do, tt.says) || strings.Contains(found[i].Do, tt.no) {
				t.Errorf("want %s to say %q and not %q: %+v", tt.id, tt.says, tt.no, found)
			}
		})
	}
}

// A plugin that is not OVN-Kubernetes' is wrapped more simply than stood before, unless
// somebody has begun with that.
func TestRemedyOfAPluginThatCanBeWrapped(t *testing.T) {
	macvlan := func(name string, plugins ...pluginConf) definition {
		return definition{name: name, ours: true, interposed: []string{"macvlan"}, plugins: plugins}
	}
	single, list := macvlan("a/b", pluginConf{Type: "macvlan"}), macvlan("a/list", pluginConf{}, pluginConf{Type: "macvlan"})
	const delegate, behind, interpose = `write "type": "dhcp-meta", with macvlan in "delegate"`, `put {"type": "dhcp-meta"} behind macvlan`, "--wrap macvlan"
	for name, tt := range map[string]struct {
		networks []definition
		search   []string
		put      fakeShelf
		told     map[string]install.Mode
		first    string   // what it begins with
		says, no []string // what it says besides, and what not
	}{
		"plain":       {[]definition{single}, []string{bin}, nil, nil, delegate, []string{interpose, "binDir"}, nil},
		"a list":      {[]definition{list}, []string{bin}, nil, nil, behind, []string{interpose}, []string{"delegate"}},
		"both":        {[]definition{list, single}, []string{bin}, nil, nil, delegate, nil, nil},
		"search path": {[]definition{single}, []string{front, bin}, fakeShelf{front + "/" + ovn: own, bin + "/" + ovn: theirs}, nil, delegate, []string{interpose}, []string{"binDir"}},
		"to be wrapped": {[]definition{single}, []string{bin}, nil, map[string]install.Mode{"macvlan": install.SearchPath}, "have the engine's init container",
			[]string{interpose, "binDir"}, []string{"delegate"}},
		"wrapped":           {[]definition{single}, []string{bin}, fakeShelf{front + "/macvlan": own}, nil, "set \"binDir\"", nil, []string{"delegate", interpose}},
		"wrapped for later": {nil, []string{bin}, fakeShelf{front + "/macvlan": own}, nil, "set \"binDir\"", nil, []string{"delegate"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeShelf{bin + "/dhcp-meta": own, bin + "/macvlan": theirs}
			maps.Copy(s, tt.put)
			j := judgement{shelf: s, binDir: bin, search: tt.search, known: true, networks: tt.networks, told: tt.told}
			found := j.run()
			finds(t, found, MultusSearchPath)
			if do := found[0].Do; !strings.HasPrefix(do, tt.first) || !contains(do, tt.says...) || slices.ContainsFunc(tt.no, func(w string) bool { return strings.Contains(do, w) }) {
				t.Errorf("want it to begin with %q, to say %q and not %q: %s", tt.first, tt.says, tt.no, do)
			}
		})
	}
}

// With the drop-in a network that asks the dhcp plugin has its dhcp object read, and
// needs nobody before its plugin.
func TestDropInNeedsNobodyBefore(t *testing.T) {
	d, _ := examined(nad("n", head+`"type":"macvlan","ipam":{"type":"dhcp"},"dhcp":{}}`, nil))
	for dropIn, want := range map[bool][]ID{true: nil, false: {MultusSearchPath}} {
		j := judgement{shelf: fakeShelf{bin + "/dhcp-meta": own, bin + "/macvlan": theirs}, binDir: bin, search: []string{bin}, known: true,
			networks: []definition{d}, dropIn: dropIn}
		finds(t, j.run(), want...)
	}
}

// All networks that a fault costs their addresses are named, each once and in order.
func TestAllNetworksOfAFaultAreNamed(t *testing.T) {
	of := func(names ...string) (all []definition) {
		for _, name := range names {
			all = append(all, definition{name: name, ours: true, interposed: []string{ovn, ovn}, plugins: []pluginConf{{Type: ovn}}})
		}
		return all
	}
	for name, tt := range map[string]struct {
		networks []definition
		told     map[string]install.Mode
		want     string
	}{
		"one":     {of("a/b"), nil, "network a/b gets no address by DHCP: Multus finds "},
		"several": {of("b/a", "a/c", "a/b"), nil, "networks a/b, a/c, b/a get no address by DHCP: Multus finds "},
		"swapped": {of("b/a", "a/b"), map[string]install.Mode{ovn: install.Swap}, "networks a/b, b/a get no address by DHCP: " + ovn + " stands "},
		"none":    {nil, map[string]install.Mode{ovn: install.SearchPath}, "networks that will be marked get no address by DHCP: "},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeShelf{bin + "/dhcp-meta": own, bin + "/" + ovn: theirs}
			j := judgement{shelf: s, binDir: bin, search: []string{bin}, known: true, networks: tt.networks, told: tt.told}
			if found := j.run(); len(found) != 1 || !strings.HasPrefix(found[0].What, tt.want) {
				t.Errorf("want %q: %+v", tt.want, found)
			}
		})
	}
}

// Installers are asked what they make of their words and variables; cmd/dhcp-engine has
// the one that is asked.
func TestToldToWrap(t *testing.T) {
	installer := func(args, environment []string) (install.Plan, error) {
		switch strings.Join(args, " ") + " " + strings.Join(environment, " ") {
		case "--wrap=a --wrap b A=1 B=":
			return install.Plan{Mode: install.Swap, Wrap: []string{"a", "b"}}, nil
		case "-wrap=a ":
			return install.Plan{Mode: install.SearchPath, Wrap: []string{"a"}}, nil
		}
		return install.Plan{}, errors.New("unknown flag")
	}
	for _, tt := range []struct {
		c    corev1.Container
		want map[string]install.Mode
	}{
		{corev1.Container{Args: []string{"install", "--wrap=a", "--wrap", "b"}, Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B"}}},
			map[string]install.Mode{"a": install.Swap, "b": install.Swap}},
		{corev1.Container{Command: []string{"/usr/bin/dhcp-engine", "install"}, Args: []string{"-wrap=a"}}, map[string]install.Mode{"a": install.SearchPath}},
		{corev1.Container{Args: []string{"install", "--everything", "--wrap=a"}}, nil}, // another's
		{corev1.Container{Args: []string{"run"}}, nil},
	} {
		pods := []corev1.Pod{{Spec: corev1.PodSpec{Containers: []corev1.Container{tt.c}}}, {Spec: corev1.PodSpec{InitContainers: []corev1.Container{tt.c}}}}
		if got := toldToWrap(pods, installer); !maps.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.c.Args, got, tt.want)
		}
	}
}

// A plugin that is to be swapped is looked for whether a network needs it or not, and
// wherever Multus searches.
func TestToldToSwap(t *testing.T) {
	for name, tt := range map[string]struct {
		put      program
		there    bool
		networks []definition
		want     map[ID]Level
	}{
		"absent":            {want: map[ID]Level{BehindMissing: Warning}},
		"in its place":      {put: theirs, there: true, want: map[ID]Level{SwapUndone: Warning}},
		"in its place, due": {put: theirs, there: true, networks: []definition{{name: "a/b", ours: true, interposed: []string{ovn}, plugins: []pluginConf{{Type: ovn}}}}, want: map[ID]Level{SwapUndone: Error}},
		"nothing behind us": {put: own, there: true, want: map[ID]Level{BehindMissing: Warning}},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeShelf{bin + "/dhcp-meta": own}
			if tt.there {
				s[bin+"/"+ovn] = tt.put
			}
			j := judgement{shelf: s, binDir: bin, search: []string{bin}, networks: tt.networks, told: map[string]install.Mode{ovn: install.Swap}}
			if got := levels(j.run()); !maps.Equal(got, tt.want) {
				t.Errorf("found %+v, want %v", j.found, tt.want)
			}
		})
	}
}

// What puts a plugin back is a new pod of the engine's: the log of the init container
// tells of the time when it was still there.
func TestRemedyOfAPluginThatIsGone(t *testing.T) {
	j := judgement{shelf: fakeShelf{}, binDir: bin, search: []string{bin}}
	found := j.run()
	finds(t, found, PluginMissing)
	if !strings.HasPrefix(found[0].Do, "delete the engine's pod on this node") {
		t.Errorf("it says to do: %s", found[0].Do)
	}
}

func TestPlugins(t *testing.T) {
	searchPath := fakeShelf{bin + "/dhcp-meta": own, bin + "/" + ovn: theirs, front + "/" + ovn: own, bin + "/macvlan": theirs}
	swapped := fakeShelf{bin + "/dhcp-meta": own, bin + "/" + ovn: own, set + "/" + ovn: theirs, bin + "/macvlan": theirs}
	both := []string{front, bin}
	localnet := definition{name: "a/localnet", ours: true, interposed: []string{ovn}, plugins: []pluginConf{{Type: ovn}}}
	office := definition{name: "a/office", ours: true, plugins: []pluginConf{{Type: ourType}, {Type: "macvlan"}}}
	foreign := definition{name: "a/other", plugins: []pluginConf{{Type: "bridge"}}}
	tuned := definition{name: "a/tuned", ours: true, interposed: []string{ovn}, plugins: []pluginConf{{}, {Type: ovn}, {Type: "tuning"}}}
	networks := []definition{localnet, office, foreign}
	for name, tt := range map[string]struct {
		shelf    fakeShelf
		without  string
		put      fakeShelf
		search   []string
		unknown  bool
		networks []definition
		want     map[ID]Level
	}{
		"search path":              {searchPath, "", nil, both, false, networks, nil},
		"swap":                     {swapped, "", nil, []string{bin}, false, networks, nil},
		"swap, unknown Multus":     {swapped, "", nil, []string{bin}, true, networks, nil},
		"not searched":             {searchPath, "", nil, []string{bin}, false, networks, map[ID]Level{MultusSearchPath: Error}},
		"not searched, not needed": {searchPath, "", nil, []string{bin}, false, nil, map[ID]Level{MultusSearchPath: Warning}},
		"nobody knows":             {searchPath, "", nil, []string{bin}, true, networks, nil},
		"wrapper gone":             {searchPath, front + "/" + ovn, nil, both, false, networks, map[ID]Level{MultusSearchPath: Error, SearchPathGone: Warning}},
		"another wrapper":          {searchPath, front + "/" + ovn, fakeShelf{front + "/calico": own, bin + "/calico": theirs}, both, false, networks, map[ID]Level{MultusSearchPath: Error}},
		"wrappers gone, not told":  {fakeShelf{bin + "/dhcp-meta": own, bin + "/macvlan": theirs}, "", nil, both, false, []definition{office}, map[ID]Level{SearchPathGone: Warning}},
		"nothing behind":           {searchPath, bin + "/" + ovn, nil, both, false, networks, map[ID]Level{BehindMissing: Error}},
		"nothing at all":           {fakeShelf{bin + "/dhcp-meta": own}, "", nil, both, false, []definition{localnet}, map[ID]Level{BehindMissing: Error, SearchPathGone: Warning}},
		"ours behind ours":         {searchPath, "", fakeShelf{bin + "/" + ovn: own}, both, false, networks, map[ID]Level{BehindOurs: Error}},
		"swap without original":    {swapped, set + "/" + ovn, nil, []string{bin}, false, networks, map[ID]Level{BehindMissing: Error}},
		"swap of itself":           {swapped, "", fakeShelf{set + "/" + ovn: own}, []string{bin}, false, networks, map[ID]Level{BehindOurs: Error}},
		"swap undone":              {swapped, "", fakeShelf{bin + "/" + ovn: theirs}, []string{bin}, false, networks, map[ID]Level{SwapUndone: Error}},
		"plugin missing":           {searchPath, bin + "/dhcp-meta", nil, both, false, networks, map[ID]Level{PluginMissing: Error}},
		"no macvlan":               {searchPath, bin + "/macvlan", nil, both, false, networks, map[ID]Level{DelegateMissing: Error}},
		"another of its list":      {searchPath, "", fakeShelf{bin + "/tuning": theirs}, both, false, []definition{tuned}, nil},
		"no other of its list":     {searchPath, "", nil, both, false, []definition{tuned}, map[ID]Level{DelegateMissing: Error}},
		"of a call that is none":   {searchPath, "", nil, both, false, []definition{{name: "a/cut", ours: true, unread: errors.New("no type"), plugins: []pluginConf{{Type: "gone"}}}}, nil},
		"real one not executable":  {searchPath, "", fakeShelf{bin + "/" + ovn: {}}, both, false, networks, map[ID]Level{PluginNoProgram: Error}},
		"real one of s390":         {searchPath, "", fakeShelf{bin + "/" + ovn: {executable: true, foreign: "s390"}}, both, false, networks, map[ID]Level{PluginArchitecture: Error}},
		"older wrapper":            {searchPath, "", fakeShelf{front + "/" + ovn: {ours: true, executable: true}}, both, false, networks, map[ID]Level{PluginVersion: Warning}},
		"a folder elsewhere":       {searchPath, "", nil, []string{"/usr/libexec/cni", bin}, false, networks, map[ID]Level{SearchPathUnseen: Note}},
		"drop-in":                  {searchPath, "", fakeShelf{bin + "/dhcp": own, set + "/dhcp": theirs}, both, false, networks, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeShelf{}
			for path, p := range tt.shelf {
				if path != tt.without {
					s[path] = p
				}
			}
			for path, p := range tt.put {
				s[path] = p
			}
			j := judgement{shelf: s, binDir: bin, search: tt.search, known: !tt.unknown, networks: tt.networks}
			got := levels(j.run())
			if len(got) != len(tt.want) {
				t.Fatalf("found %+v, want %v", j.found, tt.want)
			}
			for id, level := range tt.want {
				if got[id] != level {
					t.Errorf("found %+v, want %v", j.found, tt.want)
				}
			}
		})
	}
}
