package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// The document of Export. Its version is that of the frame; each record carries
// that of the record's own format.
const (
	documentFormat  = "dhcp-meta records"
	documentVersion = 1
	// maxDocument bounds what Import takes: 10,000 records have some 20 MB.
	maxDocument = 256 << 20
)

type document struct {
	Format   string            `json:"format"`
	Version  int               `json:"version"`
	Exported time.Time         `json:"exported"` // for people; never read back
	Records  []json.RawMessage `json:"records"`
}

// Export writes all records of the state folder dir as one document, sorted by
// file name, and returns how many there are. It takes no lock: beside a running
// engine each record is one that was there at some moment of the call. A record
// that cannot be read makes it fail before anything is written, with all such
// named: a backup that lacks some must not look whole.
func Export(w io.Writer, dir string, now time.Time) (int, error) {
	folder := filepath.Join(dir, folder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, explain("export records", err)
	}
	d := document{Format: documentFormat, Version: documentVersion, Exported: now.UTC().Truncate(time.Second), Records: []json.RawMessage{}}
	var problems []error
	for _, e := range entries {
		if atomicfile.Temp(e.Name()) || !strings.HasSuffix(e.Name(), extension) {
			continue
		}
		_, data, err := load(filepath.Join(folder, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // its attachment has ended meanwhile
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: %w", e.Name(), err))
		default:
			d.Records = append(d.Records, data)
		}
	}
	if len(problems) > 0 {
		return 0, fmt.Errorf("export records: %d cannot be read:\n%w", len(problems), errors.Join(problems...))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // the dhcp objects come back as they were written
	if err := e.Encode(d); err != nil {
		return 0, fmt.Errorf("export records: %w", err)
	}
	return len(d.Records), nil
}

// decodeDocument reads a document and checks every record in it. Its error has
// all that is wrong, by the number of the record, from 0.
func decodeDocument(data []byte) ([]engine.Record, error) {
	var probe struct {
		Format  string
		Version int
	}
	if err := json.Unmarshal(data, &probe); err != nil {
		return nil, err
	}
	if probe.Format != documentFormat || probe.Version != documentVersion {
		return nil, fmt.Errorf("format is %q of version %d, this release knows %q of version %d",
			probe.Format, probe.Version, documentFormat, documentVersion)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var doc document
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the document")
	}
	if doc.Records == nil {
		return nil, errors.New("records are missing")
	}
	var records []engine.Record
	var problems []error
	seen := map[engine.AttachmentID]int{}
	for i, data := range doc.Records {
		r, err := decode(data)
		if err == nil {
			err = check(r)
		}
		if first, twice := seen[r.AttachmentID]; err == nil && twice {
			err = fmt.Errorf("attachment %s is that of records[%d] too", r.AttachmentID, first)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("records[%d]: %w", i, err))
			continue
		}
		seen[r.AttachmentID] = i
		records = append(records, r)
	}
	return records, errors.Join(problems...)
}

// maxIfName is IFNAMSIZ without the zero byte at its end.
const maxIfName = 15

// check tells what is senseless in a record that could be read. The engine wrote
// those in its own folder; a document may have been in other hands.
func check(r engine.Record) error {
	name, err := fileName(r.AttachmentID)
	switch {
	case err != nil:
		return err
	case len(name) > 255 || len(r.IfName) > maxIfName:
		return fmt.Errorf("attachment %s is longer than a file's and an interface's name may be", r.AttachmentID)
	case r.Network == "":
		return fmt.Errorf("%s has no network", r.AttachmentID)
	case !filepath.IsAbs(r.Netns.Path):
		return fmt.Errorf("netns of %s is %q, no absolute path", r.AttachmentID, r.Netns.Path)
	case len(r.HardwareAddr) != 6:
		return fmt.Errorf("mac of %s is %q, no Ethernet address", r.AttachmentID, r.HardwareAddr)
	case len(r.ClientID) > 255:
		return fmt.Errorf("client id of %s has %d bytes", r.AttachmentID, len(r.ClientID))
	case r.Setup.Addr.IsValid() && !r.Setup.Addr.Addr().Is4():
		return fmt.Errorf("setup of %s has the address %s, which is not IPv4", r.AttachmentID, r.Setup.Addr)
	}
	needed := false
	switch r.Phase {
	case engine.Claimed, engine.Leased, engine.Orphaned, engine.Releasing:
		needed = true
	case engine.Seeking, engine.Superseded:
	default:
		return fmt.Errorf("phase of %s is %q, which this release does not know", r.AttachmentID, r.Phase)
	}
	if !needed && !r.Lease.Addr.IsValid() {
		return nil
	}
	if err := checkLease(r.Lease); err != nil {
		return fmt.Errorf("lease of %s (%s) %w", r.AttachmentID, r.Phase, err)
	}
	return nil
}

func checkLease(l dhcp4.Lease) error {
	switch {
	case !l.Addr.Addr().Is4():
		return fmt.Errorf("has the address %s, which is not IPv4", l.Addr)
	case !l.Server.Is4():
		return fmt.Errorf("has the server %s, which is not IPv4", l.Server)
	case l.Start.IsZero():
		return errors.New("has no start")
	case l.Lifetime <= 0, l.T1 <= 0, l.T2 < l.T1, l.Lifetime < l.T2:
		return fmt.Errorf("has T1 %s, T2 %s and lifetime %s, not 0 < T1 <= T2 <= lifetime", l.T1, l.T2, l.Lifetime)
	}
	return nil
}
