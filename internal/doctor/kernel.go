package doctor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The oldest kernel that tells the cookie of a network namespace.
const oldestMajor, oldestMinor = 5, 14

// kernel is what is read of the kernel and of what it lets this process do.
type kernel struct {
	release string
	// capabilities are the effective ones, as a mask.
	capabilities uint64
	// promote is whether an address stays when another one of its subnet goes, in
	// namespaces that inherit from this one.
	promote bool
	// bootOffset is how far CLOCK_BOOTTIME of this process is from the node's.
	bootOffset string
}

func (e *examination) checkKernel(context.Context) ([]Finding, string) {
	k, err := readKernel()
	if err != nil {
		return []Finding{{KernelOld, Error, "the kernel does not tell what it is", err.Error(),
			"mount /proc into the engine's container; it is there unless somebody has taken it away"}}, ""
	}
	return k.judge(), "Linux " + k.release
}

func readKernel() (k kernel, err error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return k, os.NewSyscallError("uname", err)
	}
	k.release = unix.ByteSliceToString(uts.Release[:])
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return k, err
	}
	if k.capabilities, err = effective(status); err != nil {
		return k, err
	}
	for _, name := range []string{"all", "default"} {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/promote_secondaries")
		if err == nil && string(bytes.TrimSpace(value)) != "0" {
			k.promote = true
		}
	}
	// A kernel without time namespaces has no such file.
	offsets, _ := os.ReadFile("/proc/self/timens_offsets")
	k.bootOffset = bootOffset(offsets)
	return k, nil
}

// effective finds the line CapEff of /proc/<pid>/status.
func effective(status []byte) (uint64, error) {
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no line CapEff")
}

// bootOffset finds the offset of CLOCK_BOOTTIME in /proc/<pid>/timens_offsets; empty:
// there is none.
func bootOffset(offsets []byte) string {
	for line := range strings.Lines(string(offsets)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "boottime" && (f[1] != "0" || f[2] != "0") {
			return f[1] + " s"
		}
	}
	return ""
}

// needed are the capabilities without which no ADD works, and for what.
var needed = []struct {
	bit        int
	name, for_ string
}{
	{unix.CAP_NET_ADMIN, "NET_ADMIN", "addresses and routes in pods"},
	{unix.CAP_NET_RAW, "NET_RAW", "packet sockets for DHCP and ARP"},
	{unix.CAP_SYS_ADMIN, "SYS_ADMIN", "entering network namespaces"},
}

func (k kernel) judge() (found []Finding) {
	if !newEnough(k.release) {
		found = append(found, Finding{KernelOld, Error, "the kernel is too old", seen("its release is %s", k.release),
			fmt.Sprintf("run a kernel of %d.%d or later: older ones do not tell one network namespace from another one at the same path", oldestMajor, oldestMinor)})
	}
	var missing []string
	for _, c := range needed {
		if k.capabilities&(1<<c.bit) == 0 {
			missing = append(missing, fmt.Sprintf("%s (%s)", c.name, c.for_))
		}
	}
	if len(missing) > 0 {
		found = append(found, Finding{CapabilityMissing, Error, "the container lacks capabilities: " + strings.Join(missing, ", "),
			seen("CapEff in /proc/self/status is %016x", k.capabilities),
			"add them in securityContext.capabilities of the engine's container; the DaemonSet in manifests/ has them"})
	}
	if !k.promote {
		found = append(found, Finding{PromoteOff, Note, "an address that expires takes others of its subnet along that were added after it",
			"net.ipv4.conf.all.promote_secondaries and .default.promote_secondaries are 0 on the node, and new namespaces inherit that",
			"set net.ipv4.conf.default.promote_secondaries=1 on the node, if pods have more than one address in a subnet"})
	}
	if k.bootOffset != "" {
		found = append(found, Finding{BootTimeOffset, Warning, "the engine lives in another boot time than its node",
			seen("/proc/self/timens_offsets moves boottime by %s", k.bootOffset),
			"run the engine without a time namespace: in another one after a restart it would take all leases for older or younger than they are"})
	}
	return found
}

// newEnough takes a release like 5.14.0-427.el9.x86_64. One that cannot be read is
// not held against the kernel.
func newEnough(release string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
		return true
	}
	return major > oldestMajor || major == oldestMajor && minor >= oldestMinor
}
