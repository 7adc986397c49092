package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine/store"
)

// defaultStateDir is that of run; a test holds the two together.
const defaultStateDir = "/var/lib/dhcp-meta"

// stateDir declares the setting that run has too.
func (in *input) stateDir() *string {
	v := in.text("state-dir", defaultStateDir, "`folder` of the engine's records")
	in.checks = append(in.checks, func() { in.check("state-dir", absolute(*v)) })
	return v
}

// runExport is `dhcp-engine export`.
func runExport(_ context.Context, args []string, std streams) error {
	in := newInput("export", std.environment)
	dir := in.stateDir()
	if err := in.parse(args); err != nil {
		return err
	}
	if err := in.err(); err != nil {
		return err
	}
	_, err := store.Export(std.stdout, *dir, time.Now())
	return err
}

// runImport is `dhcp-engine import`.
func runImport(_ context.Context, args []string, std streams) error {
	in := newInput("import", std.environment)
	file := in.operand("FILE")
	dir := in.stateDir()
	replace := in.yes("replace", "records of the document take the place of those with the same attachment")
	if err := in.parse(args); err != nil {
		return err
	}
	if err := in.err(); err != nil {
		return err
	}
	doc := std.stdin
	if *file != "-" {
		f, err := os.Open(*file)
		if err != nil {
			return fmt.Errorf("import: %w", err)
		}
		defer f.Close()
		doc = f
	}
	did, err := store.Import(*dir, doc, *replace)
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("%w: stop it first, it would overwrite what is imported", err)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.stdout, "records in %s: %d added, %d replaced; dhcp-engine takes them up at its next start\n", *dir, did.Added, did.Replaced)
	return err
}
