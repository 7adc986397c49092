package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// recorderConf stands beside the recorder's programs and tells them their part.
const recorderConf = "recorder.json"

// Recorder is a folder for CNI_PATH whose plugins write down how they are called,
// and then are the real ones. The test binary itself plays them, under another
// name.
type Recorder struct {
	// Folder goes into Call.Path.
	Folder string
	conf   recording
}

type recording struct {
	// Real is the folder of the real plugins, Log the file of Recorded lines.
	Real, Log string
	// Fail are verbs that fail after the real plugin has run.
	Fail []string
	// As names the real plugin behind one that is played under another name.
	As map[string]string
}

// Recorded is one call of a delegate.
type Recorded struct {
	Plugin, Verb        string
	ContainerID, IfName string
	Netns, Args, Path   string
	Stdin               json.RawMessage
}

// NewRecorder records the calls of the named plugins. Their verbs in fail give an
// error after the real plugin did its work.
func NewRecorder(t testing.TB, plugins []string, fail ...string) *Recorder {
	t.Helper()
	folder := t.TempDir()
	r := &Recorder{Folder: folder, conf: recording{
		Real: Plugins(), Log: filepath.Join(folder, "calls.jsonl"), Fail: fail, As: map[string]string{},
	}}
	for _, name := range plugins {
		r.Play(t, name, name)
	}
	return r
}

// Play adds a plugin of any name, behind which a real one of another does the work.
func (r *Recorder) Play(t testing.TB, name, real string) {
	t.Helper()
	r.conf.As[name] = real
	b, err := json.Marshal(r.conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Folder, recorderConf), b, 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(r.Folder, name)); err != nil {
		t.Fatal(err)
	}
}

// Files are the names of what must stand together wherever the recorder's plugins
// are to be found, besides in its folder.
func (r *Recorder) Files() []string {
	return append(slices.Collect(maps.Keys(r.conf.As)), recorderConf)
}

// Calls returns the calls so far, in order; with verbs, only those of the verbs.
func (r *Recorder) Calls(t testing.TB, verbs ...string) []Recorded {
	t.Helper()
	b, err := os.ReadFile(r.conf.Log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var calls []Recorded
	for dec := json.NewDecoder(bytes.NewReader(b)); ; {
		var c Recorded
		err := dec.Decode(&c)
		if errors.Is(err, io.EOF) {
			return calls
		}
		if err != nil {
			t.Fatalf("read the recorder's log: %v", err)
		}
		if len(verbs) == 0 || slices.Contains(verbs, c.Verb) {
			calls = append(calls, c)
		}
	}
}

// recorderMain plays a plugin when the test binary was executed as one.
func recorderMain() bool {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), recorderConf))
	if err != nil {
		return false
	}
	var conf recording
	if err := json.Unmarshal(b, &conf); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(playPlugin(conf, filepath.Base(os.Args[0])))
	return true
}

func playPlugin(conf recording, plugin string) int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	call := Recorded{
		Plugin: plugin, Verb: os.Getenv("CNI_COMMAND"),
		ContainerID: os.Getenv("CNI_CONTAINERID"), IfName: os.Getenv("CNI_IFNAME"),
		Netns: os.Getenv("CNI_NETNS"), Args: os.Getenv("CNI_ARGS"), Path: os.Getenv("CNI_PATH"), Stdin: stdin,
	}
	if err := call.append(conf.Log); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(filepath.Join(conf.Real, conf.As[plugin]))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), os.Stdout, os.Stderr
	if slices.Contains(conf.Fail, call.Verb) {
		cmd.Stdout = nil
	}
	err = cmd.Run()
	if slices.Contains(conf.Fail, call.Verb) {
		fmt.Printf(`{"cniVersion":"1.0.0","code":111,"msg":"%s fails as the test wants it"}`, call.Verb)
		return 1
	}
	if err != nil {
		return 1
	}
	return 0
}

// append adds the call to the log in one write, since plugins may run side by
// side.
func (c Recorded) append(log string) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}
