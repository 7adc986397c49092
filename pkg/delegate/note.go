package delegate

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/dhcp-meta/dhcp-meta/internal/atomicfile"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// leaveNote tells an engine that is away that the attachment has ended: it reads
// the note at its next start and gives the lease back, while there is still an
// interface that can carry the DHCPRELEASE. The note is an empty file.
func leaveNote(stateDir string, id api.AttachmentID) error {
	dir := filepath.Join(stateDir, api.EndedFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("leave a note for the engine (see stateDir): %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, id.String()), nil, 0o600); err != nil {
		return fmt.Errorf("leave a note for the engine (see stateDir): %w", err)
	}
	return nil
}
