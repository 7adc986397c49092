package engine

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// returnReserve is what is kept of the window in which a device may be away from
// vfio-pci, for undoing what came to nothing and for the way back.
const returnReserve = 7 * time.Second

// acquireBorrowed is acquire for a device on vfio-pci: for the time of the exchange
// it has an interface, in a namespace of the engine's own. Whatever becomes of the
// exchange, the device goes back; and only with the device back the ADD succeeds.
func (s *session) acquireBorrowed(ctx context.Context, prior *Record, older []*session) error {
	if w := s.cfg.Window; w > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(w-returnReserve, w/3))
		defer cancel()
	}
	device, err := s.cfg.Devices.Borrow(ctx, Loan{Attachment: s.att, Device: s.att.DeviceID, HardwareAddr: s.link.HardwareAddr})
	if err != nil {
		return fmt.Errorf("borrow device %s from vfio-pci: %w", s.att.DeviceID, err)
	}
	w := &wire{links: s.cfg.Links, target: device.Target()}
	if err = s.meet(ctx, device); err == nil {
		err = s.acquireOn(ctx, w, prior, older)
	}
	if err != nil {
		s.abandon(ctx, w, err)
	}
	// An open socket would keep the namespace, and with it the device.
	w.close()
	back := device.Return(ctx)
	if back == nil {
		return err
	}
	back = &strandedError{s.att.DeviceID, back}
	if err == nil { // what was got is of no use without the device
		s.abandon(ctx, w, back)
		w.close()
	}
	if again := device.Return(ctx); again == nil {
		s.log.Warn("device has gone back to vfio-pci at the second try", "device", s.att.DeviceID, "error", back)
	}
	return both(back, err)
}

// strandedError says that a borrowed device could not be given back.
type strandedError struct {
	device string
	err    error
}

func (e *strandedError) Error() string {
	return fmt.Sprintf("device %s does not go back to vfio-pci: %v", e.device, e.err)
}

func (e *strandedError) Unwrap() error { return e.err }

// meet settles the identity of a borrowed device.
func (s *session) meet(ctx context.Context, device Borrowed) error {
	link, err := s.cfg.Links.Inspect(ctx, device.Target())
	if err != nil {
		return fmt.Errorf("look at the interface of device %s: %w", s.att.DeviceID, err)
	}
	if want := s.link.HardwareAddr; want != nil && !bytes.Equal(want, link.HardwareAddr) {
		return fmt.Errorf("device %s has the MAC %s, its guest will have %s", s.att.DeviceID, link.HardwareAddr, want)
	}
	s.link.HardwareAddr, s.link.MTU, s.link.Kind = link.HardwareAddr, link.MTU, link.Kind
	return api.WithCode(api.CodeConfig, s.identify())
}

// healDevice gives the device of an attachment back that a crash has left borrowed
// and that did not go back when the engine started. One that is anybody's by now is
// not touched.
func (s *session) healDevice(ctx context.Context) {
	if !s.plan.Borrow || s.cfg.Devices == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	if err := s.cfg.Devices.HealDevice(ctx, s.att.DeviceID); err != nil {
		s.log.Error("a device that was left borrowed does not go back to vfio-pci", "device", s.att.DeviceID, "error", err)
	}
}
