package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// archive is an OCI archive: an image layout in a tar file.
type archive struct {
	files map[string][]byte
	index index
}

type index struct {
	Manifests []descriptor `json:"manifests"`
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

// image is one architecture's image.
type image struct {
	archive  *archive
	manifest struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	config struct {
		Architecture string    `json:"architecture"`
		OS           string    `json:"os"`
		Created      time.Time `json:"created"`
		Config       struct {
			User       string
			Env        []string
			Entrypoint []string
			Cmd        []string
			Labels     map[string]string
		} `json:"config"`
	}
}

func open(path string) (*archive, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &archive{files: map[string][]byte{}}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return a, a.read("index.json", &a.index)
		}
		if err != nil {
			return nil, err
		}
		if a.files[h.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

func (a *archive) read(name string, into any) error {
	b, ok := a.files[name]
	if !ok {
		return fmt.Errorf("the archive has no %s", name)
	}
	return json.Unmarshal(b, into)
}

// blob reads what a digest stands for, and holds it against that.
func (a *archive) blob(d descriptor, into any) error {
	name := "blobs/" + strings.Replace(d.Digest, ":", "/", 1)
	if sum := sha256.Sum256(a.files[name]); "sha256:"+hex.EncodeToString(sum[:]) != d.Digest {
		return fmt.Errorf("%s has another digest", name)
	}
	return a.read(name, into)
}

func (a *archive) image(d descriptor) (*image, error) {
	i := &image{archive: a}
	if err := a.blob(d, &i.manifest); err != nil {
		return nil, err
	}
	if len(i.manifest.Layers) != 1 {
		return nil, fmt.Errorf("the image has %d layers, want 1", len(i.manifest.Layers))
	}
	return i, a.blob(i.manifest.Config, &i.config)
}

// layer is the image's only layer, compressed.
func (i *image) layer() io.Reader {
	return bytes.NewReader(i.archive.files["blobs/"+strings.Replace(i.manifest.Layers[0].Digest, ":", "/", 1)])
}
