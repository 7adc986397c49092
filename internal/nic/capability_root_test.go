package nic

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLackingU20: a refusal names the capability that is missing, and only that one; a
// refusal for another reason stays as it is.
func TestLackingU20(t *testing.T) {
	needRoot(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread ends with the goroutine, as nothing else may run without.
		runtime.LockOSThread()
		drop(t, unix.CAP_NET_RAW)
		err := lacking(unix.CAP_NET_RAW, unix.EPERM)
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "without the capability NET_RAW") {
			t.Errorf("without NET_RAW: %v", err)
		}
		for _, tt := range []struct {
			capability int
			err        error
		}{
			{unix.CAP_NET_ADMIN, unix.EPERM}, // the driver's refusal
			{unix.CAP_NET_RAW, unix.ENODEV},
			{unix.CAP_NET_RAW, nil},
		} {
			if got := lacking(tt.capability, tt.err); got != tt.err {
				t.Errorf("%v became %v", tt.err, got)
			}
		}
	}()
	<-done
}

// drop takes a capability from the calling thread.
func drop(t *testing.T, capability int) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Error(err)
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Error(err)
	}
}
