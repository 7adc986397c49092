package crash

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
	"github.com/dhcp-meta/dhcp-meta/tests/rig/trap"
)

// atOnce is how many lanes run at once: they wait, most of the time.
const atOnce = "12"

func TestMain(m *testing.M) {
	trap.Launch()
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	rig.Main(m)
}
