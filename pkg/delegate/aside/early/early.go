// Package early lets a program that stands before another plugin step aside as
// soon as it can: while its own packages are being initialised.
//
// Go initialises, of all packages whose imports are ready, the one whose path
// sorts first. Package aside needs so little that its turn comes before that of
// reflect, encoding/json, net and all that the rest of the plugin needs, which
// takes as long as the start of the Go runtime. A test in cmd/dhcp-meta holds that.
//
// Only cmd/dhcp-meta imports it: in another program it would be a surprise.
package early

import "github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"

var outcome = decided()

// Outcome is what was found at the start: see aside.Run.
func Outcome() aside.Outcome { return outcome }

func decided() aside.Outcome {
	p, ok := aside.Started()
	if !ok {
		return aside.Outcome{}
	}
	return aside.Run(p)
}
