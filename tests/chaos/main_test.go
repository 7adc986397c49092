package chaos

import (
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
