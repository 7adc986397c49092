package dhcp4

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt and docs/dhcp-states.md from what the machine does")

// TestTranscripts plays the stories in testdata. Each is a list of events, with
// what the machine did about them below a line of dashes. After a change of the
// machine run `go test -run Transcripts -update`, and commit the difference only
// if you can say why every line of it is right.
//
// A line is `[@time] event arguments`; times count from the beginning:
//
//	config client-id=01.. hostname=.. servers=A,B deny=A,B address=A broadcast=yes probe=yes rapid=yes
//	start [previous=A/N server=A lease=D]
//	resume A/N server=A lease=D [t1=D t2=D]     (got at @0)
//	offer|ack|nak [A[/N]] [server=A|none lease=D t1=D t2=D router=A dns=A static=A,A
//	     routes=HEX msroutes=HEX mtu=N domain=S message=S rapid=yes xid=N mac=M id=HEX
//	     from=A relay=A]
//	probed [MAC]                                (of the host that has the address)
//	conflict MAC
//	elapsed [xN]                                (when the deadline has come)
//	renew [rebind]
//	stop [release]
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("the story goes another way (-want +got):\n%s", diff)
			}
		})
	}
}

// play runs the events of a transcript and returns it with the output as it is
// now. Comments and empty lines between events stay.
func play(t *testing.T, text string) string {
	t.Helper()
	p := player{t: t, cfg: testConfig(), now: epoch}
	p.m = New(p.cfg)
	var out strings.Builder
	inOutput, gap := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			inOutput = true
		case inOutput && line != "":
		case line == "" || strings.HasPrefix(line, "#"):
			inOutput, gap = false, false
			out.WriteString(line + "\n")
		default:
			if gap {
				out.WriteString("\n") // it ends the output before
			}
			out.WriteString(line + "\n")
			result := p.event(line)
			if gap = result != ""; gap {
				out.WriteString("----\n" + result)
			}
		}
	}
	return out.String()
}
