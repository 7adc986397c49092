package sriov

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrAddress is the error of what is no PCI address.
var ErrAddress = errors.New("is no PCI address, such as 0000:3b:02.4")

// ParseAddress returns a PCI address as the kernel writes it: domain, bus, device
// and function, in lower case. The domain must be there; it has more than four
// digits behind some host bridges (Intel VMD).
func ParseAddress(s string) (string, error) {
	bad := fmt.Errorf("%q %w", s, ErrAddress)
	fields := strings.Split(s, ":")
	if len(fields) != 3 {
		return "", bad
	}
	slot, function, found := strings.Cut(fields[2], ".")
	if !found {
		return "", bad
	}
	domain, ok1 := hexadecimal(fields[0], 4, 8, 1<<32-1)
	bus, ok2 := hexadecimal(fields[1], 2, 2, 0xff)
	device, ok3 := hexadecimal(slot, 2, 2, 0x1f)
	fn, ok4 := hexadecimal(function, 1, 1, 7)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return "", bad
	}
	return fmt.Sprintf("%04x:%02x:%02x.%d", domain, bus, device, fn), nil
}

// hexadecimal reads a number of so many digits; no sign, no prefix, no underscore.
func hexadecimal(s string, min, max int, limit uint64) (uint64, bool) {
	if len(s) < min || len(s) > max || strings.Trim(s, "0123456789abcdefABCDEF") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 16, 64)
	return n, err == nil && n <= limit
}
