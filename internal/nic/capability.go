package nic

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// capabilities are those that the engine's container may have been given without,
// by what people write into its securityContext.
var capabilities = map[int]string{
	unix.CAP_NET_ADMIN:  "NET_ADMIN",
	unix.CAP_NET_RAW:    "NET_RAW",
	unix.CAP_SYS_ADMIN:  "SYS_ADMIN",
	unix.CAP_SYS_PTRACE: "SYS_PTRACE",
}

// lacking adds to a refusal of the kernel which capability is missing. A refusal that
// has another reason, as when a virtual function may not change its MAC, stays as it
// is.
func lacking(capability int, err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) || has(capability) {
		return err
	}
	return fmt.Errorf("%w: dhcp-engine runs without the capability %s", err, capabilities[capability])
}

// has tells whether the calling thread has a capability in effect.
func has(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &data[0]); err != nil {
		return true // nothing is known
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}
