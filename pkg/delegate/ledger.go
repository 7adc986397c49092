package delegate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// ledger remembers which delegates have run ADD and not yet DEL, so that DEL
// runs once for each ADD of them: the runtime sends DEL after a failed ADD too,
// and may send it again and again, which some plugins do not take well (a second
// DEL of OVN-Kubernetes for a secondary interface takes the pod's first one).
//
// An attachment's entry is a file of its own, <container>:<interface>.json. It is
// written before the delegate's ADD and removed when a DEL of it has succeeded.
type ledger struct {
	// dir is the folder of the entries; it need not exist.
	dir string
}

// entry is what is remembered of an attachment.
type entry struct {
	Network string `json:"network"`
	Netns   string `json:"netns"`
	Form    form   `json:"form"`
	// Conf is what the delegate got at ADD, without prevResult. A runtime that
	// has lost the configuration at DEL (Multus 4.2.3 has, for a default network
	// in a .conflist) finds it here.
	Conf object `json:"conf"`
	// Result is the delegate's own result, once it has one.
	Result json.RawMessage `json:"result,omitempty"`
	// Cookie tells the network namespace of the ADD from all others of this boot; 0
	// where it does not matter. VFIO says that the interface is a device on vfio-pci,
	// which no namespace has. Tried says that its DEL has been run.
	Cookie uint64 `json:"cookie,omitempty"`
	VFIO   bool   `json:"vfio,omitempty"`
	Tried  bool   `json:"tried,omitempty"`
}

const (
	entrySuffix = ".json"
	lockSuffix  = ".lock"
)

func openLedger(stateDir string) ledger { return ledger{filepath.Join(stateDir, "delegates")} }

// path is the attachment's file with that suffix. CNI allows neither '/' nor ':'
// in the parts of an id, so that no two ids have the same.
func (l ledger) path(id api.AttachmentID, suffix string) string {
	return filepath.Join(l.dir, id.String()+suffix)
}

// create makes the folder. Only root may look into it: configurations can hold
// what is nobody's business.
func (l ledger) create() error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("create the ledger's folder (see stateDir): %w", err)
	}
	return nil
}

// read returns the entry of id; ok is false when there is none. An entry that
// cannot be decoded is there all the same: the delegate has run, and only what
// it said is lost.
func (l ledger) read(id api.AttachmentID) (e entry, ok bool, err error) {
	raw, err := os.ReadFile(l.path(id, entrySuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, false, nil
	}
	if err != nil {
		return entry{}, false, fmt.Errorf("read the ledger's entry: %w", err)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return entry{}, true, nil
	}
	return e, true, nil
}

// write makes e the entry of id.
func (l ledger) write(id api.AttachmentID, e entry) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode the ledger's entry: %w", err)
	}
	if err := atomicfile.Write(l.path(id, entrySuffix), raw, 0o600); err != nil {
		return fmt.Errorf("ledger (see stateDir): %w", err)
	}
	return nil
}

// remove removes the entry of id for good: were it back after a loss of power,
// the delegate's DEL would run again.
func (l ledger) remove(id api.AttachmentID) error {
	err := os.Remove(l.path(id, entrySuffix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the ledger's entry: %w", err)
	}
	dir, err := os.Open(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the ledger's folder: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("make the removal from the ledger durable: %w", err)
	}
	return nil
}

// list returns the attachments of a network.
func (l ledger) list(network string) (ids []api.AttachmentID, err error) {
	err = l.each(func(id api.AttachmentID, e entry) {
		if e.Network == network {
			ids = append(ids, id)
		}
	})
	return ids, err
}

// holder tells whether some attachment has the interface of that name in the
// namespace with that cookie.
func (l ledger) holder(cookie uint64, ifName string) (found bool, err error) {
	err = l.each(func(id api.AttachmentID, e entry) {
		found = found || e.Cookie == cookie && id.IfName == ifName
	})
	return found, err
}

// each calls f for all entries. One that cannot be decoded says nothing.
func (l ledger) each(f func(api.AttachmentID, entry)) error {
	files, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the ledger: %w", err)
	}
	for _, file := range files {
		name, isEntry := strings.CutSuffix(file.Name(), entrySuffix)
		id, ok := api.ParseAttachmentID(name)
		if !isEntry || !ok {
			continue
		}
		if e, ok, err := l.read(id); err == nil && ok {
			f(id, e)
		}
	}
	return nil
}
