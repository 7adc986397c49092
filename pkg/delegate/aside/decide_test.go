package aside

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// state is a state folder with what a test puts there.
func state(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Who decides at which verb. The engine, where it is asked, says yes.
func TestDecide(t *testing.T) {
	const (
		plain    = `{"type":"ovn","name":"n","netAttachDefName":"prod/localnet-77"}`
		nameless = `{"type":"ovn","name":"n"}`
		object   = `{"type":"ovn","name":"n","dhcp":{}}`
		ours     = `{"type":"dhcp-meta"}`
		list     = "networks.json"
		entry    = "delegates/0123456789abcdef:net1.json"
		note     = "passed/0123456789abcdef:net1"
	)
	bothKeys := map[string]string{list: `{"marked":["prod/localnet-77"]}`, note: "{}", entry: `{"network":"n","form":"both keys","conf":{"type":"ovn"}}`}
	wrapping := map[string]string{list: bothKeys[list], note: "{}", entry: `{"network":"n","form":"delegate","conf":{"type":"ovn"}}`}
	interposed := map[string]string{entry: `{"network":"n","form":"interposed","conf":{"form":"delegate"}}`}
	all := map[string]string{list: `{"marked":["prod/localnet-77"]}`, entry: "{}", note: "{}"}
	marked := map[string]string{list: `{"marked":["a/b","prod/localnet-77"]}`}
	others := map[string]string{list: `{"marked":["a/b"]}`}
	corrupt := map[string]string{list: `{"marked":["prod/localnet-77"`}
	tests := []struct {
		name  string
		verbs []string
		conf  string
		files map[string]string
		want  Way
		asked bool
	}{
		{"OK our own type", []string{"ADD", "DEL", "CHECK", "STATUS", "GC"}, ours, nil, Serve, false},
		{"OK dhcp object", []string{"ADD", "DEL", "CHECK", "STATUS", "GC"}, object, nil, Serve, false},
		{"OK default network", []string{"ADD", "DEL", "CHECK", "STATUS", "GC"}, nameless, marked, Undecided, false},
		{"OK listed", []string{"ADD", "DEL", "STATUS", "GC"}, plain, marked, Serve, false},
		{"OK not listed, the engine knows better", []string{"ADD"}, plain, others, Serve, true},
		{"OK a list that is no JSON", []string{"ADD"}, plain, corrupt, Serve, true},
		{"OK no list yet", []string{"ADD"}, plain, nil, Serve, true},
		{"OK not listed", []string{"DEL", "CHECK", "STATUS", "GC"}, plain, others, Undecided, false},
		{"OK the ledger has it, the mark is gone", []string{"DEL", "CHECK"}, plain, map[string]string{entry: "{}"}, Serve, false},
		{"OK the ledger has it, the configuration is lost", []string{"DEL", "CHECK"}, nameless, map[string]string{entry: "{}"}, Serve, false},
		{"OK the ledger goes before a note", []string{"DEL"}, nameless, all, Serve, false},
		{"OK the ledger has it as interposed", []string{"DEL", "CHECK"}, plain, interposed, Serve, false},
		{"OK our own call, both keys", []string{"ADD", "DEL", "CHECK"}, plain, bothKeys, Undecided, false},
		{"OK our own call, delegate", []string{"ADD", "DEL", "CHECK"}, nameless, wrapping, Undecided, false},
		{"OK let pass at ADD", []string{"DEL"}, plain, map[string]string{note: "{}"}, SettlePassed, false},
		{"OK let pass at ADD, marked since", []string{"DEL"}, plain, map[string]string{note: "{}", list: marked[list]}, SettlePassed, false},
		{"OK marked, but not in the ledger", []string{"CHECK"}, plain, marked, Undecided, false},
		{"OK no JSON", []string{"ADD", "DEL", "CHECK"}, `{"dhcp":{}`, all, Undecided, false},
	}
	for _, tt := range tests {
		for _, verb := range tt.verbs {
			t.Run(tt.name+" "+verb, func(t *testing.T) {
				var asked atomic.Bool
				env := testEnvironment()
				env.stateDir = state(t, tt.files)
				env.socket = engine(t, backend{marked: func(context.Context, api.Request) (bool, error) {
					asked.Store(true)
					return true, nil
				}})
				if got := decide(verb, env, []byte(tt.conf)); got != tt.want {
					t.Errorf("got %v, want %v", got, tt.want)
				}
				if asked.Load() != tt.asked {
					t.Errorf("the engine was asked: %v, want %v", asked.Load(), tt.asked)
				}
			})
		}
	}
}

// Who is let pass because nobody answered leaves a note, and nobody else does.
func TestNoteOfWhatPassed(t *testing.T) {
	const conf = `{"type":"ovn","name":"localnet-77","netAttachDefName":"prod/localnet-77","deviceID":"0000:03:02.1"}`
	file := func(env surroundings) string { return env.stateDir + "/passed/" + env.id() }
	env := testEnvironment()
	env.socket = filepath.Join(t.TempDir(), "s")
	env.stateDir = filepath.Join(t.TempDir(), "state")

	for _, verb := range []string{"DEL", "CHECK", "STATUS", "GC"} {
		decide(verb, env, []byte(conf))
	}
	decide("ADD", env, []byte(`{"type":"ovn","name":"n"}`))
	if exists(env.stateDir) {
		t.Fatal("a note where no answer was needed")
	}
	for range 2 { // a second ADD finds the note of the first
		if got := decide("ADD", env, []byte(conf)); got != Undecided {
			t.Errorf("got %v, want to pass", got)
		}
	}
	raw, err := os.ReadFile(file(env))
	if err != nil {
		t.Fatal(err)
	}
	var got api.Request
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.NAD != "prod/localnet-77" || got.Wrapped != "ovn" || got.Pod.UID != "u1" || got.DeviceID != "0000:03:02.1" || got.Netns == "" {
		t.Errorf("note %s", raw)
	}
	for path, want := range map[string]os.FileMode{file(env): 0o600, env.stateDir + "/passed": 0o700 | os.ModeDir} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, fi.Mode(), err, want)
		}
	}
	if entries, err := os.ReadDir(env.stateDir + "/passed"); err != nil || len(entries) != 1 {
		t.Errorf("files beside the note: %v, %v", entries, err)
	}

	t.Run("no, after a no", func(t *testing.T) {
		env := env
		env.stateDir = filepath.Join(t.TempDir(), "state")
		env.socket = engine(t, backend{marked: func(context.Context, api.Request) (bool, error) { return false, nil }})
		if got := decide("ADD", env, []byte(conf)); got != Undecided || exists(env.stateDir) {
			t.Errorf("got %v, a note: %v", got, exists(env.stateDir))
		}
	})
	t.Run("after an error of the engine", func(t *testing.T) {
		env := env
		env.stateDir = filepath.Join(t.TempDir(), "state")
		env.socket = engine(t, backend{marked: func(context.Context, api.Request) (bool, error) { return false, errors.New("the API is away") }})
		if got := decide("ADD", env, []byte(conf)); got != Undecided || !exists(file(env)) {
			t.Errorf("got %v, a note: %v", got, exists(file(env)))
		}
	})
	t.Run("one that cannot be written fails nothing", func(t *testing.T) {
		env := env
		env.stateDir = filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(env.stateDir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := decide("ADD", env, []byte(conf)); got != Undecided {
			t.Errorf("got %v, want to pass", got)
		}
	})
	t.Run("nothing is written for an id that CNI does not allow", func(t *testing.T) {
		for _, id := range [][2]string{{"../x", "net1"}, {"", "net1"}, {"c", "a/b"}, {"c", ".."}, {"c", "sixteencharacter"}, {"c/d", "net1"}} {
			env := env
			env.stateDir = filepath.Join(t.TempDir(), "state")
			env.container, env.ifName = id[0], id[1]
			if got := decide("ADD", env, []byte(conf)); got != Undecided || exists(env.stateDir) {
				t.Errorf("%q: got %v, files: %v", id, got, exists(env.stateDir))
			}
		}
	})
}

func TestNewProgram(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want Program
	}{
		{"OK path", []string{"/opt/wrap/bin/ovn", "x"}, Program{"ovn", "/opt/wrap/bin", []string{"x"}}},
		{"OK relative path", []string{"bin/ovn"}, Program{"ovn", "bin", []string{}}},
		{"OK in the root", []string{"/ovn"}, Program{"ovn", "/", []string{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := NewProgram(tt.args)
			if diff := cmp.Diff(tt.want, got); diff != "" || !ok {
				t.Errorf("program (-want +got), %v:\n%s", ok, diff)
			}
		})
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := NewProgram([]string{"ovn"}); !ok || got.Name != "ovn" || got.Dir != filepath.Dir(exe) {
		t.Errorf("found in PATH: %+v, %v", got, ok)
	}
	if _, ok := NewProgram(nil); ok {
		t.Error("no arguments are a program")
	}
	if got, ok := Started(); !ok || got.Name != filepath.Base(os.Args[0]) || len(got.Args) != len(os.Args)-1 {
		t.Errorf("this process: %+v, %v", got, ok)
	}
}
