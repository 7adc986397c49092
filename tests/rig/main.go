package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The environment of a test run. Main fills in the folders when they are not set.
const (
	// envPrograms is the folder of dhcp-meta and dhcp-engine.
	envPrograms = "DHCP_META_BIN"
	// envPlugins is the folder of the reference CNI plugins.
	envPlugins = "DHCP_META_PLUGINS"
	// envRequireRoot turns the skip of a test that needs root into a failure.
	envRequireRoot = "DHCP_META_REQUIRE_ROOT"
	// envRace builds dhcp-engine with the race detector.
	envRace = "DHCP_META_RACE"
)

// Main is the TestMain of a package that uses the laboratory. It builds the
// programs of this source tree, so no test ever meets a stale binary, and removes
// what killed runs left behind. What is in after runs when all tests are through.
func Main(m *testing.M, after ...func()) {
	if recorderMain() {
		return
	}
	code := runMain(m)
	for _, f := range after {
		f()
	}
	os.Exit(code)
}

func runMain(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test skips or fails by Need
	}
	folder, err := os.MkdirTemp("", "dhcp-meta-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	if err := prepare(folder); err != nil {
		fmt.Fprintf(os.Stderr, "prepare the laboratory: %v\n", err)
		return 1
	}
	return m.Run()
}

func prepare(folder string) error {
	for _, program := range []string{"ip", "ping", "nft", "nsenter", "dnsmasq", "kea-dhcp4", "dhcpd", "dhcrelay"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w; `make deps` installs it", err)
		}
	}
	root, err := ModuleRoot()
	if err != nil {
		return err
	}
	if os.Getenv(envPrograms) == "" {
		if err := build(root, folder); err != nil {
			return err
		}
		if err := os.Setenv(envPrograms, folder); err != nil {
			return err
		}
	}
	if os.Getenv(envPlugins) == "" {
		plugins, err := ToolCache("plugins")
		if err != nil {
			return err
		}
		if err := os.Setenv(envPlugins, plugins); err != nil {
			return err
		}
	}
	return RemoveLeftovers()
}

func build(root, folder string) error {
	engine, env := []string{"-trimpath"}, "CGO_ENABLED=0"
	if os.Getenv(envRace) != "" {
		engine, env = append(engine, "-race"), "CGO_ENABLED=1"
	}
	if err := goBuild(root, folder, "CGO_ENABLED=0", "./cmd/dhcp-meta", "-trimpath"); err != nil {
		return err
	}
	return goBuild(root, folder, env, "./cmd/dhcp-engine", engine...)
}

func goBuild(root, folder, env, program string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", folder + "/"}, flags...), program)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	return nil
}

// ToolCache is the folder of the programs of a module below tests, which are built
// when they are not there yet.
func ToolCache(module string) (string, error) {
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "tests/tool-cache"), module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tests/tool-cache %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// ModuleRoot is the folder of go.mod above the test.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod above the test's folder")
		}
		dir = parent
	}
}

// Need skips a test that cannot run without root. Where root is promised, as in
// CI, it fails instead: a skipped test proves nothing.
func Need(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	const why = "network namespaces of the laboratory need root"
	if os.Getenv("CI") != "" || os.Getenv(envRequireRoot) != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Program is the path of dhcp-meta or dhcp-engine.
func Program(name string) string { return filepath.Join(os.Getenv(envPrograms), name) }

// Plugins is the folder of the reference CNI plugins.
func Plugins() string { return os.Getenv(envPlugins) }
