package delegate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/network"
)

// settlePassed ends what the engine may have made of an ADD that was let pass, and
// forgets the note of it. Nothing of it keeps the plugin that comes next from its
// DEL.
func (p *Plugin) settlePassed(ctx context.Context, id api.AttachmentID) {
	s := p.placed(network.Settings{Socket: network.DefaultSocket, StateDir: network.DefaultStateDir})
	if err := detach(ctx, p.Dial(s.Socket), id, awayLimit); err != nil {
		p.remark(err)
		if err := leaveNote(s.StateDir, id); err != nil {
			p.remark(err)
			return // the other note is all that is left to go by
		}
	}
	p.remark(forgetPassed(s.StateDir, id))
}

// forgetPassed removes the note of an ADD that was let pass, if there is one.
func forgetPassed(stateDir string, id api.AttachmentID) error {
	err := os.Remove(filepath.Join(stateDir, api.PassedFolder, id.String()))
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil
	}
	return fmt.Errorf("forget that the ADD was let pass: %w", err)
}
