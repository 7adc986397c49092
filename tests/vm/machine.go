package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// limit is how long a machine may run, however busy the one around it is.
const limit = 15 * time.Minute

// hardware are the devices of the machine. Both ends of the wire are in it.
var hardware = []string{
	// An igb whose virtual functions get IOMMU groups of their own, and the
	// server's end of its wire.
	"-device", "pcie-root-port,id=port1,chassis=1",
	"-netdev", "hubport,id=wire0,hubid=0", "-device", "igb,bus=port1,netdev=wire0,mac=52:54:00:00:00:10",
	"-netdev", "hubport,id=wire1,hubid=0", "-device", "e1000e,netdev=wire1,mac=52:54:00:00:00:20",
	// A second igb, which has no virtual functions.
	"-device", "pcie-root-port,id=port2,chassis=2",
	"-netdev", "hubport,id=other0,hubid=1", "-device", "igb,bus=port2,netdev=other0,mac=52:54:00:00:00:30",
	// An SSD with virtual functions.
	"-device", "pcie-root-port,id=port3,chassis=3", "-device", "nvme-subsys,id=subsys",
	"-device", "nvme,serial=1,subsys=subsys,bus=port3,sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=6,msix_qsize=5",
	// Two NICs behind one bridge, and so in one IOMMU group.
	"-device", "pcie-root-port,id=port4,chassis=4", "-device", "pcie-pci-bridge,id=bridge,bus=port4",
	"-netdev", "hubport,id=other1,hubid=1", "-device", "e1000,bus=bridge,addr=1,netdev=other1",
	"-netdev", "hubport,id=other2,hubid=1", "-device", "rtl8139,bus=bridge,addr=2,netdev=other2",
}

// A Machine is an emulated node that runs.
type Machine struct {
	// Said is what the program in it writes to standard output and error.
	Said rig.Stream[string]

	folder string
	// end kills it.
	end  context.CancelFunc
	done chan struct{}
	err  error
}

// Config is what a machine gets.
type Config struct {
	// Files stand below /payload, by their name there.
	Files map[string]string
	// Start is the text of the script that init executes in /payload.
	Start string
	// Devices are more words of qemu's command line.
	Devices []string
	// Netns is where qemu runs; nil: in one of its own, without a way out.
	Netns *rig.Netns
}

// Boot starts a machine, which ends with the test.
func Boot(t testing.TB, cfg Config) *Machine {
	t.Helper()
	image := Image(t)
	if cfg.Netns == nil {
		cfg.Netns = rig.NewNetns(t, "vm")
	}
	m := &Machine{folder: t.TempDir(), done: make(chan struct{})}
	if err := m.initrd(image, cfg); err != nil {
		t.Fatalf("make the machine's payload: %v", err)
	}
	said, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	m.end = cancel
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.arguments(image, cfg.Devices)...)
	cmd.ExtraFiles = []*os.File{w} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cfg.Netns.Do(cmd.Start)
	w.Close()
	if err != nil {
		cancel()
		said.Close()
		t.Fatalf("start qemu: %v", err)
	}
	go m.read(said)
	go func() {
		defer close(m.done)
		defer cancel()
		if err := cmd.Wait(); err != nil {
			m.err = fmt.Errorf("qemu: %w: %s", errors.Join(err, ctx.Err()), strings.TrimSpace(stderr.String()))
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-m.done
		if t.Failed() {
			t.Logf("the machine's console said:\n%s", m.console())
		}
	})
	return m
}

// Image builds what a machine boots from, when that is not there yet, and qemu.
func Image(t testing.TB) string {
	t.Helper()
	rig.Need(t)
	cmd := exec.Command(filepath.Join(moduleRoot(t), "tests/vm/image/build"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build the image of the emulated node: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// initrd writes the machine's first file system.
func (m *Machine) initrd(image string, cfg Config) error {
	f, err := os.Create(filepath.Join(m.folder, "initrd"))
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.Open(filepath.Join(image, "root.cpio"))
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := io.Copy(f, root); err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	if err := payload(w, cfg.Files, cfg.Start); err != nil {
		return err
	}
	return errors.Join(w.Flush(), f.Close())
}

func (m *Machine) arguments(image string, devices []string) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		// One processor: with two, machines hung now and then on a busy host.
		// TCG, since a KVM that runs inside of another machine may not boot a stock
		// kernel at all.
		"-machine", "q35,smm=off", "-accel", "tcg", "-cpu", "Westmere,+rdrand", "-smp", "1", "-m", "1024",
		"-device", "intel-iommu,intremap=on",
		"-kernel", filepath.Join(image, "vmlinux"),
		"-initrd", filepath.Join(m.folder, "initrd"),
		"-append", strings.Join(kernelArguments(), " "),
		"-serial", "file:" + filepath.Join(m.folder, "console"),
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=said,path=/dev/fd/3,append=on", "-device", "virtserialport,chardev=said,name=said",
		"-chardev", "file,id=end,path=" + filepath.Join(m.folder, "end"), "-device", "virtserialport,chardev=end,name=end",
	}
	return append(append(args, hardware...), devices...)
}

// kernelArguments leave out self-tests, keys and mitigations, which are seconds of a
// boot that is emulated.
func kernelArguments() []string {
	args := []string{
		"console=ttyS0", "quiet", "panic=-1", "intel_iommu=on", "mitigations=off", "cryptomgr.notests",
		"initcall_blacklist=crypto_kdf108_init,jent_mod_init,init_encrypted,load_system_certificate_list",
		// Timers are late while the host is busy; that is no fault of theirs.
		"no_timer_check",
	}
	// So is a calibration of the clock against them. Where the host's own is known,
	// tell it.
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !bytes.Contains(b, []byte("tsc_known_freq")) {
		return args
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "cpu MHz" {
			if mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				return append(args, fmt.Sprintf("tsc_early_khz=%d", int(mhz*1000)))
			}
		}
	}
	return args
}

func (m *Machine) read(said io.ReadCloser) {
	defer said.Close()
	defer m.Said.End()
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m.Said.Add(strings.TrimSuffix(lines.Text(), "\r"))
	}
}

// Wait waits for the machine's end, and returns the exit status of its program and
// what its kernel said. An error is the machine's own.
func (m *Machine) Wait() (status int, kernel string, err error) {
	<-m.done
	if m.err != nil {
		return 0, "", m.err
	}
	b, err := os.ReadFile(filepath.Join(m.folder, "end"))
	if err != nil {
		return 0, "", err
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	if _, err := fmt.Sscanf(first, "status %d", &status); err != nil {
		return 0, "", fmt.Errorf("the machine died; its console: %s", m.console())
	}
	return status, rest, nil
}

// console is the end of what the kernel wrote to its console.
func (m *Machine) console() string {
	b, err := os.ReadFile(filepath.Join(m.folder, "console"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}
