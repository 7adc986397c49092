package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// TestImageContent: nothing is in the image but what docs/security.md says, and the
// programs are static and for the image's architecture.
func TestImageContent(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"etc/":                "drwxr-xr-x",
		"etc/passwd":          "-rw-r--r--",
		"run/":                "drwxr-xr-x",
		"tmp/":                "dtrwxrwxrwx",
		"usr/":                "drwxr-xr-x",
		"usr/bin/":            "drwxr-xr-x",
		"usr/bin/dhcp-engine": "-rwxr-xr-x",
		"usr/bin/dhcp-meta":   "-rwxr-xr-x",
		"usr/share/":          "drwxr-xr-x",
		licenses:              "drwxr-xr-x",
		"var/":                "drwxr-xr-x",
		"var/run":             "Lrwxrwxrwx -> /run",
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, arch := range architectures {
		i := imageOf(t, ofArch(arch))
		got := map[string]string{}
		for _, e := range entries(t, i) {
			if !strings.HasPrefix(e.Name, licenses) || e.Name == licenses {
				got[e.Name] = e.FileInfo().Mode().String()
			}
			if e.Linkname != "" {
				got[e.Name] += " -> " + e.Linkname
			}
			if e.Uid != 0 || e.Gid != 0 || !e.ModTime.Equal(i.config.Created) {
				t.Errorf("%s: %s is of %d:%d and of %v, want root's and of the commit, %v", arch, e.Name, e.Uid, e.Gid, e.ModTime, i.config.Created)
			}
			if strings.HasPrefix(e.Name, "usr/bin/dhcp-") {
				program(t, e, machines[arch])
			}
			if e.Name == "etc/passwd" && string(e.content) != "root:x:0:0:root:/:/usr/bin/dhcp-engine\n" {
				t.Errorf("%s: passwd is %q", arch, e.content)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", arch, diff)
		}
	}
}

// licenses is the folder of the licences.
const licenses = "usr/share/licenses/"

// TestLicences: whatever is linked into a program has a licence in the image, and nothing
// else is among them. What others have put into a module has its own.
func TestLicences(t *testing.T) {
	t.Parallel()
	for _, arch := range architectures {
		linked := map[string]bool{"go": true}
		texts := map[string]int{}
		for _, e := range entries(t, imageOf(t, ofArch(arch))) {
			if strings.HasPrefix(e.Name, "usr/bin/dhcp-") {
				info, err := buildinfo.Read(bytes.NewReader(e.content))
				if err != nil {
					t.Fatalf("%s: %v", e.Name, err)
				}
				linked[info.Main.Path] = true
				for _, d := range info.Deps {
					linked[d.Path] = true
				}
			}
			if name, ok := strings.CutPrefix(e.Name, licenses); ok && e.Typeflag == tar.TypeReg {
				texts[name] = len(e.content)
				if e.FileInfo().Mode() != 0o644 {
					t.Errorf("%s: %s has mode %v", arch, e.Name, e.FileInfo().Mode())
				}
			}
		}
		if len(linked) < 40 {
			t.Errorf("%s: %d modules only", arch, len(linked))
		}
		for module := range linked {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(texts)), func(name string) bool { return filepath.Dir(name) == module }) {
				t.Errorf("%s: no licence of %s", arch, module)
			}
		}
		for name, size := range texts {
			within := false
			for module := range linked {
				within = within || strings.HasPrefix(name, module+"/")
			}
			if !within || size == 0 {
				t.Errorf("%s: %s, of %d bytes, is of nothing that is linked", arch, name, size)
			}
		}
	}
}

// program holds that a program is static and for the machine.
func program(t *testing.T, e entry, machine elf.Machine) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(e.content))
	if err != nil {
		t.Fatalf("%s: %v", e.Name, err)
	}
	if f.Machine != machine {
		t.Errorf("%s is for %v, want %v", e.Name, f.Machine, machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is not static: it has %v", e.Name, p.Type)
		}
	}
}

// TestImageConfig: what a runtime and a registry read of the image; the archive of all
// architectures has the same images.
func TestImageConfig(t *testing.T) {
	t.Parallel()
	all, err := open(filepath.Join(archives(t), "dhcp-meta.tar"))
	if err != nil {
		t.Fatal(err)
	}
	var list index
	if err := all.blob(all.index.Manifests[0], &list); err != nil {
		t.Fatal(err)
	}
	together := map[string]string{}
	for _, m := range list.Manifests {
		together[m.Platform.OS+"/"+m.Platform.Architecture] = m.Digest
	}
	alone := map[string]string{}
	for _, arch := range architectures {
		i := imageOf(t, ofArch(arch))
		c := i.config
		alone["linux/"+arch] = i.digest
		if c.OS != "linux" || c.Architecture != arch || c.Config.User != "" || len(c.Config.Cmd) != 0 {
			t.Errorf("%s: for %s/%s, user %q, command %q", arch, c.OS, c.Architecture, c.Config.User, c.Config.Cmd)
		}
		if diff := cmp.Diff([]string{"/usr/bin/dhcp-engine"}, c.Config.Entrypoint); diff != "" {
			t.Errorf("%s: entry point (-want +got):\n%s", arch, diff)
		}
		if diff := cmp.Diff([]string{"PATH=/usr/bin"}, c.Config.Env); diff != "" {
			t.Errorf("%s: environment (-want +got):\n%s", arch, diff)
		}
		labels := c.Config.Labels
		version := labels["org.opencontainers.image.version"]
		if diff := cmp.Diff(map[string]string{
			"org.opencontainers.image.title":       "dhcp-meta",
			"org.opencontainers.image.description": "DHCP for the secondary networks of pods and virtual machines",
			"org.opencontainers.image.source":      "https://github.com/dhcp-meta/dhcp-meta",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.revision":    strings.TrimSpace(git(t, "rev-parse", "HEAD")),
		}, labels); diff != "" || version == "" {
			t.Errorf("%s: labels (-want +got):\n%s", arch, diff)
		}
		// Without the name of a registry: who has one puts its own in front.
		if name := i.name; name != "dhcp-meta:"+version {
			t.Errorf("%s: the image is called %q", arch, name)
		}
	}
	if diff := cmp.Diff(alone, together); diff != "" {
		t.Errorf("images alone and together (-alone +together):\n%s", diff)
	}
}

// TestImageReproducible: built of a copy of the sources elsewhere, without git, by
// somebody with another umask and in another time zone, it is the same image.
func TestImageReproducible(t *testing.T) {
	t.Parallel()
	first := archives(t)
	i := imageOf(t, ofArch("amd64"))
	folder := filepath.Join(t.TempDir(), "elsewhere", "sources")
	copyTree(t, folder)
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.Command("sh", "-c", "umask 077; exec images/build "+out)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "TZ=Asia/Kathmandu", "LC_ALL=C.UTF-8", "GIT_DIR=/nonexistent",
		"VERSION="+i.config.Config.Labels["org.opencontainers.image.version"],
		"REVISION="+i.config.Config.Labels["org.opencontainers.image.revision"],
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", i.config.Created.Unix()))
	if err := build(cmd); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ofArch("amd64"), ofArch("arm64"), "dhcp-meta.tar"} {
		one, err := open(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		two, err := open(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(one.index, two.index); diff != "" {
			t.Errorf("%s (-here +elsewhere):\n%s", name, diff)
		}
	}
}

// copyTree copies the files of the source tree that are git's, or would be.
func copyTree(t *testing.T, folder string) {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cp", "--parents", "--no-dereference", "--target-directory", folder)
	cmd.Dir = root
	for name := range strings.SplitSeq(git(t, "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root, name)); name != "" && err == nil {
			cmd.Args = append(cmd.Args, name)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v\n%s", err, out)
	}
}

func git(t *testing.T, args ...string) string {
	t.Helper()
	root, err := rig.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		t.Fatalf("git %s: %v", args[0], err)
	}
	return string(out)
}

// named is an image with what its archive calls it.
type named struct {
	*image
	name, digest string
}

// imageOf is the image of an archive that has one.
func imageOf(t *testing.T, name string) named {
	t.Helper()
	a, err := open(filepath.Join(archives(t), name))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.index.Manifests); n != 1 {
		t.Fatalf("%s has %d images, want 1", name, n)
	}
	d := a.index.Manifests[0]
	i, err := a.image(d)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return named{i, d.Annotations["org.opencontainers.image.ref.name"], d.Digest}
}

type entry struct {
	*tar.Header
	content []byte
}

// entries are the files of the image.
func entries(t *testing.T, i named) []entry {
	t.Helper()
	z, err := gzip.NewReader(i.layer())
	if err != nil {
		t.Fatal(err)
	}
	var all []entry
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entry{h, b})
	}
}
