// Package aside is the part of the plugin that makes an interposed program the
// plugin that it stands before, by execve, for every network that is not ours.
//
// It runs for every interface of every pod, the default network's too, so it
// does its work before the rest of the program is initialised: see package early.
// That is why it imports nothing but packages that the Go runtime has initialised
// by then, reads JSON by itself and speaks to the engine without a poller. The
// tests hold it against encoding/json and package api.
//
// It promises that a network without a mark gets the plugin that it would have got
// without us, with the same environment, arguments and standard input, whatever
// state the engine is in.
package aside

import (
	"syscall"
	"time"
)

// OwnName is the name under which the program stands before nobody.
const OwnName = "dhcp-meta"

// IPAMName is the name under which the program is the IPAM plugin of that name.
const IPAMName = "dhcp"

// What is in docs/configuration.md, and in the packages that this one cannot import.
const (
	defaultSocket   = "/run/dhcp-meta/engine.sock"
	defaultStateDir = "/var/lib/dhcp-meta"
	networksFile    = "networks.json"
	passedFolder    = "passed"
	ledgerFolder    = "delegates"
	ledgerSuffix    = ".json"
)

// The variables with which the engine is told of other places than the defaults.
// Where a network cannot say so itself, as one that is marked by its annotation,
// they hold for the plugin too.
const (
	SocketVariable   = "DHCP_ENGINE_SOCKET"
	StateDirVariable = "DHCP_ENGINE_STATE_DIR"
)

// questionLimit bounds the question to the engine as a whole: one that hangs must
// not hold a network that is not ours.
const questionLimit = time.Second

// Way is what is left to do when Run has returned.
type Way int

// The ways.
const (
	// Undecided: it could not be found out how the program was started.
	Undecided Way = iota
	// Serve the call: it is the plugin's own.
	Serve
	// SettlePassed: a DEL whose ADD was let pass because nobody said whether the
	// network is ours, and a note tells of it. The engine has to end what it may
	// have made of the note; then Become.
	SettlePassed
	// Failed: the process should be another plugin, and Err says why it is not.
	Failed
)

// Outcome is what Run found.
type Outcome struct {
	Way Way
	Err *Error
}

// WrappedFolder is where the installer puts the plugins of a folder whose places the
// program has taken there.
func WrappedFolder(dir string) string { return dir + "/" + OwnName + "-wrapped" }

// Error is an error with the code of CNI.
type Error struct {
	Code uint
	text string
}

func (e *Error) Error() string { return e.text }

// The codes of CNI that are used here.
const (
	codeIO     = 5
	codeConfig = 7
	codeOther  = 999
)

// Program is how the process was started.
type Program struct {
	// Name is the base name of argument 0, Dir the folder of it as its caller
	// found it: not resolved, since an installed plugin may be a link to a program
	// of another name.
	Name, Dir string
	// Args are the arguments behind it.
	Args []string
}

// Run decides, and returns when the call is the plugin's own; otherwise the process
// has become the plugin that it stands before. Standard input, where it was read,
// stands at its beginning again.
func Run(p Program) Outcome {
	if p.Name == OwnName || p.Name == IPAMName {
		return Outcome{Way: Serve}
	}
	verb, _ := syscall.Getenv("CNI_COMMAND")
	if readsConfiguration(verb) {
		raw, err := rereadableStdin()
		if err != nil {
			return Outcome{Failed, err}
		}
		if w := decide(verb, environment(), raw); w != Undecided {
			return Outcome{Way: w}
		}
	}
	return Outcome{Failed, p.Become()}
}

// readsConfiguration tells whether a verb comes with a configuration. VERSION
// has nothing by which a network could be told.
func readsConfiguration(verb string) bool {
	switch verb {
	case "ADD", "DEL", "CHECK", "GC", "STATUS":
		return true
	}
	return false
}

// decide tells what to do with a call: Undecided means that it is not ours.
//
// An ADD asks for today's mark; a DEL and a CHECK go by what the ADD did, and so by
// the ledger. The mark counts at a DEL only for networks that are still ours: one
// whose entry is settled must not reach the plugin for a second time.
func decide(verb string, env surroundings, raw []byte) Way {
	n := look(raw)
	switch {
	case !n.valid: // what is no JSON is not ours either: the plugin has the word
		return Undecided
	case n.kind == OwnName || n.dhcp:
		return Serve
	}
	known := env.valid()
	if entry := env.path(ledgerFolder) + ledgerSuffix; known && exists(entry) {
		switch {
		case wrapsAnother(entry):
			return Undecided
		case verb == "DEL" || verb == "CHECK":
			return Serve
		}
	}
	if verb == "CHECK" {
		return Undecided
	}
	if known && verb == "DEL" && exists(env.path(passedFolder)) {
		return SettlePassed
	}
	if n.nad == "" {
		return Undecided
	}
	if listed(env.stateDir+"/"+networksFile, n.nad) {
		return Serve
	}
	if verb == "ADD" && known {
		return decideByEngine(env, n)
	}
	return Undecided
}

// wrapsAnother tells whether an entry of the ledger is of a dhcp-meta that was called
// under its own name. The call is its own then: it wraps the plugin that this program
// stands before, holds the lock of the attachment until we have answered, and would
// be waited for until the runtime gives up.
func wrapsAnother(entry string) bool {
	raw, err := readFile(entry)
	if err != nil {
		return false
	}
	form := ""
	Members(raw, func(key string, value []byte) {
		if key == "form" {
			form = decodeText(value)
		}
	})
	return form == "both keys" || form == "delegate"
}

// decideByEngine asks whether the network is ours. Where nobody answers the call
// goes by as if we were not there, and leaves a note, by which the engine can give
// the pod its lease later.
func decideByEngine(env surroundings, n conf) Way {
	request := encodeRequest(env, n)
	marked, answered := ask(env.socket, questionPath(env), request, questionLimit)
	if marked {
		return Serve
	}
	if !answered {
		// One that cannot be written costs a marked network its lease until the
		// pod's next sandbox, and an unmarked one nothing.
		_ = leaveNote(env.stateDir+"/"+passedFolder, env.id(), request)
	}
	return Undecided
}

// Become makes the process the plugin that the program stands before; it returns only
// with an error.
func (p Program) Become() *Error {
	for try := 0; ; try++ {
		path, e := p.wrapped()
		if e != nil {
			return e
		}
		err := syscall.Exec(path, append([]string{path}, p.Args...), syscall.Environ())
		switch {
		case try == busyRetries:
		case err == syscall.ENOENT: // the installer has put it elsewhere meanwhile
			continue
		case err == syscall.ETXTBSY: // it is being installed by writing into its file
			time.Sleep(busyDelay)
			continue
		}
		return &Error{codeOther, "execute " + path + ": " + err.Error()}
	}
}

// wrapped finds the plugin of our name: where the installer has put it when the
// program took its place, or behind our folder in CNI_PATH.
func (p Program) wrapped() (string, *Error) {
	if path := WrappedFolder(p.Dir) + "/" + p.Name; isFile(path) {
		return path, nil
	}
	cniPath, _ := syscall.Getenv("CNI_PATH")
	dirs, err := Behind(p.Dir, cniPath)
	for _, dir := range dirs {
		if path := dir + "/" + p.Name; isFile(path) {
			return path, nil
		}
	}
	// An uninstaller may have put the plugin back into its place since we were started
	// from there. If it is a program of ours that stands there still, the second slash
	// tells it that it is the second to look.
	if path := p.Dir + "//" + p.Name; p.Dir[len(p.Dir)-1] != '/' && isFile(path) {
		return path, nil
	}
	if err != nil {
		return "", &Error{codeConfig, err.Error()}
	}
	return "", &Error{codeConfig, "find plugin " + p.Name + ": it is in none of the folders of CNI_PATH \"" + cniPath + "\" behind " + p.Dir + ", nor in " + WrappedFolder(p.Dir)}
}

const (
	busyRetries = 10
	busyDelay   = 100 * time.Millisecond
)
