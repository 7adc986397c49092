package kubelet

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// Image is an image of programs of the machine.
type Image struct {
	// Name is how manifests call it, with registry and tag.
	Name string
	// Programs are the files in it, by their path there; Links are symbolic links, and
	// Texts small files.
	Programs, Links, Texts map[string]string
	Entrypoint             []string
}

// Import gives an image to the node's containerd.
func (n *Node) Import(t testing.TB, image Image) {
	t.Helper()
	n.Run(t, "ctr", "--namespace=k8s.io", "images", "import", image.Write(t))
}

// Write writes the image as an OCI archive, and returns its path.
func (i Image) Write(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, i.archive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// archive is the image as an OCI image layout in a tar file.
func (i Image) archive(t testing.TB) []byte {
	t.Helper()
	a := newArchive(t)
	layer := a.blob(i.layer(t), "application/vnd.oci.image.layer.v1.tar")
	config := a.blob(a.json(rig.Object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": rig.Object{"Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, "Entrypoint": i.Entrypoint},
		"rootfs": rig.Object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	}), "application/vnd.oci.image.config.v1+json")
	manifest := a.blob(a.json(rig.Object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{layer},
	}), "application/vnd.oci.image.manifest.v1+json")
	manifest["annotations"] = rig.Object{"io.containerd.image.name": i.Name}
	a.file("index.json", 0o644, a.json(rig.Object{"schemaVersion": 2, "manifests": []any{manifest}}))
	a.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return a.bytes()
}

func (i Image) layer(t testing.TB) []byte {
	t.Helper()
	a := newArchive(t)
	for path, program := range i.Programs {
		b, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		a.file(path, 0o755, b)
	}
	for path, text := range i.Texts {
		a.file(path, 0o644, []byte(text))
	}
	for path, target := range i.Links {
		a.write(tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: target, Mode: 0o777}, nil)
	}
	return a.bytes()
}

// archive is a tar file being written, in memory.
type archive struct {
	t      testing.TB
	buffer bytes.Buffer
	tar    *tar.Writer
}

func newArchive(t testing.TB) *archive {
	a := &archive{t: t}
	a.tar = tar.NewWriter(&a.buffer)
	return a
}

func (a *archive) file(name string, mode int64, content []byte) {
	a.t.Helper()
	a.write(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}, content)
}

func (a *archive) write(header tar.Header, content []byte) {
	a.t.Helper()
	if err := a.tar.WriteHeader(&header); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.tar.Write(content); err != nil {
		a.t.Fatal(err)
	}
}

// blob adds content under the name of its digest, and returns its descriptor.
func (a *archive) blob(content []byte, mediaType string) rig.Object {
	a.t.Helper()
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	a.file("blobs/sha256/"+digest, 0o644, content)
	return rig.Object{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
}

func (a *archive) json(v any) []byte {
	a.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

func (a *archive) bytes() []byte {
	a.t.Helper()
	if err := a.tar.Close(); err != nil {
		a.t.Fatal(err)
	}
	return a.buffer.Bytes()
}
