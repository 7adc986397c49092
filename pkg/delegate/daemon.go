package delegate

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/ipamconf"
	"github.com/dhcp-meta/dhcp-meta/pkg/delegate/aside"
)

// engineName is the program that does the work of the reference's daemon.
const engineName = "dhcp-engine"

// daemonTimeout is how long the reference's daemon tries to get a lease; the others
// are the limits of dhcp-engine's --dhcp-timeout.
const (
	daemonTimeout    = 208 * time.Second
	minDaemonTimeout = time.Second
	maxDaemonTimeout = time.Hour
)

// runsDaemon tells whether the program was started as the reference's daemon is.
func runsDaemon(p aside.Program, args []string) bool {
	return p.Name == aside.IPAMName && len(args) > 1 && args[1] == "daemon"
}

// runDaemon makes the process the engine. It returns when that fails, with the exit
// code. The engine keeps process id and descriptors, which is all that systemd and
// whoever waits for the daemon know of it.
func runDaemon(p aside.Program, args []string) int {
	arguments, err := engineArguments(args, os.Getenv)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(os.Stderr, daemonUsage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "dhcp daemon: %v\n", err)
		return 2
	}
	program, err := findEngine(p.Dir)
	if err == nil {
		err = fmt.Errorf("execute %s: %w", program, syscall.Exec(program, append([]string{engineName}, arguments...), os.Environ()))
	}
	fmt.Fprintf(os.Stderr, "dhcp daemon: %v\n", err)
	return 1
}

const daemonUsage = `dhcp daemon serves the IPAM plugin dhcp, by the program dhcp-engine beside it.

  -socketpath PATH         socket for the plugin; default ` + ipamconf.DefaultSocket + `
  -hostprefix FOLDER       where the host's root is mounted; before socket and namespaces
  -pidfile FILE            file for the process id
  -broadcast               ask servers to answer by broadcast
  -resendtimeout DURATION  how long a lease is tried for; default 3m28s
  -timeout, -resendmax     are taken and have no meaning: what is sent again, and when,
                           is said by RFC 2131

What else dhcp-engine can be told is told by its variables, DHCP_ENGINE_...; with
DHCP_ENGINE_NODE_NAME it uses the Kubernetes API.
`

// engineArguments are the engine's for those of the daemon.
func engineArguments(args []string, getenv func(string) string) ([]string, error) {
	flags := flag.NewFlagSet("daemon", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	socket := flags.String("socketpath", "", "")
	prefix := flags.String("hostprefix", "", "")
	pidFile := flags.String("pidfile", "", "")
	broadcast := flags.Bool("broadcast", false, "")
	limit := flags.Duration("resendtimeout", daemonTimeout, "")
	flags.Duration("timeout", 0, "")
	flags.Duration("resendmax", 0, "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *socket == "" {
		*socket = ipamconf.DefaultSocket
	}
	var err error
	switch { // the reference takes paths from where it was started
	case *prefix == "":
		*socket, err = filepath.Abs(*socket)
	default:
		*prefix, err = filepath.Abs(*prefix)
	}
	if err != nil {
		return nil, err
	}
	// The engine has limits where the reference has none, and must start all the same.
	*limit = min(max(*limit, minDaemonTimeout), maxDaemonTimeout)
	out := []string{"run", "--dhcp-socket=" + *socket, "--dhcp-timeout=" + limit.String()}
	if *prefix != "" {
		out = append(out, "--host-prefix="+*prefix)
	}
	if *pidFile != "" {
		out = append(out, "--pidfile="+*pidFile)
	}
	if *broadcast {
		out = append(out, "--dhcp-broadcast")
	}
	if getenv("DHCP_ENGINE_NODE_NAME") == "" {
		out = append(out, "--no-kubernetes")
	}
	return out, nil
}

// findEngine looks beside the program, as it was started and as it is installed, and
// then in PATH.
func findEngine(dir string) (string, error) {
	dirs := []string{dir}
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, d := range dirs {
		path, err := exec.LookPath(filepath.Join(d, engineName))
		if err == nil {
			return filepath.Abs(path)
		}
	}
	path, err := exec.LookPath(engineName)
	if err != nil {
		return "", fmt.Errorf("find %s: it is neither in %q nor in PATH: install it beside this program", engineName, dirs)
	}
	return filepath.Abs(path)
}
