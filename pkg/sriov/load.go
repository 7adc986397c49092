package sriov

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// compressedFile is MODULE_INIT_COMPRESSED_FILE of linux/module.h: the kernel
// itself decompresses the file (Linux 5.17, CONFIG_MODULE_DECOMPRESS).
const compressedFile = 4

// maxModule bounds what a compressed file may become; drivers are a few megabytes.
const maxModule = 256 << 20

// loadFile hands the file of a module to the kernel. There is no modprobe in an
// image without a system.
func (h *Host) loadFile(path, options string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = h.hand(f, filepath.Ext(path), options)
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w: the engine may not load modules (CAP_SYS_MODULE, lockdown): have the node load it at its boot (/etc/modules-load.d)", path, err)
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// hand is finit_module(2), or init_module(2) for what only we can decompress.
func (h *Host) hand(f *os.File, ext, options string) error {
	// The kernel reads a zero byte behind the options.
	options = strings.ReplaceAll(options, "\x00", "")
	if ext == ".ko" {
		return unix.FinitModule(int(f.Fd()), options, 0)
	}
	form := map[string]string{".gz": "gzip", ".xz": "xz", ".zst": "zstd"}[ext]
	if does, err := text(h.path("sys/module/compression")); err == nil && does == form && form != "" {
		return unix.FinitModule(int(f.Fd()), options, compressedFile)
	}
	if form != "gzip" {
		return fmt.Errorf("neither this kernel nor the engine reads modules of form %q: have the node load it at its boot (/etc/modules-load.d)", ext)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	image, err := io.ReadAll(io.LimitReader(z, maxModule))
	if err != nil {
		return err
	}
	err = unix.InitModule(image, options)
	runtime.KeepAlive(image)
	return err
}
