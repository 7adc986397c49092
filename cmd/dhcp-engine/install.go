package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/dhcp-meta/dhcp-meta/internal/install"
)

// binDir declares the folder that install and uninstall work on.
func (in *input) binDir() *string {
	v := in.text("bin-dir", "/opt/cni/bin", "`folder` of the node's CNI plugins")
	in.checks = append(in.checks, func() { in.check("bin-dir", absolute(*v)) })
	return v
}

// mode declares how the plugin is put there; install.Plan checks it.
func (in *input) mode() *string {
	return in.text("mode", string(install.Plain), "`mode`: plain, search-path, swap or drop-in")
}

// rawInstall is what install is told, as it was given.
type rawInstall struct {
	dir, mode *string
	wrap      *[]string
	watch     *bool
}

func declareInstall(in *input) rawInstall {
	r := rawInstall{dir: in.binDir(), mode: in.mode(), wrap: new([]string)}
	in.flags.Func("wrap", "`name` of a plugin to stand in front of (search-path), or in the place of (swap); repeatable",
		func(name string) error { *r.wrap = append(*r.wrap, name); return nil })
	r.watch = in.yes("watch", "stay, and wrap again what others install over it (swap, drop-in), until SIGTERM")
	return r
}

func (r rawInstall) plan() install.Plan {
	return install.Plan{Mode: install.Mode(*r.mode), Wrap: *r.wrap}
}

// planOf is what an install with these flags and variables plans, in another container;
// whether it is a plan that can be is not looked at.
func planOf(args, environment []string) (install.Plan, error) {
	in := newInput("install", environment)
	r := declareInstall(in)
	if err := in.parse(args); err != nil {
		return install.Plan{}, err
	}
	return r.plan(), nil
}

// runInstall is `dhcp-engine install`.
func runInstall(ctx context.Context, args []string, std streams) error {
	in := newInput("install", std.environment)
	r := declareInstall(in)
	if err := in.parse(args); err != nil {
		return err
	}
	plan := r.plan()
	in.check("mode", plan.Check())
	if *r.watch && plan.Mode != install.Swap && plan.Mode != install.DropIn {
		in.check("watch", errors.New("only in the modes swap and drop-in others can come into our place"))
	}
	if err := in.err(); err != nil {
		return err
	}
	program, err := besideUs("dhcp-meta")
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	f := &install.Folder{Dir: *r.dir, Program: program, Log: slog.New(slog.NewTextHandler(std.stderr, nil))}
	if err = f.Check(); err == nil {
		if *r.watch {
			err = f.Watch(ctx, plan)
		} else {
			err = f.Install(plan)
		}
	}
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// besideUs reads the program of that name beside this one.
func besideUs(name string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(filepath.Dir(self), name))
}

// runUninstall is `dhcp-engine uninstall`.
func runUninstall(ctx context.Context, args []string, std streams) error {
	in := newInput("uninstall", std.environment)
	dir := in.binDir()
	var state install.State
	in.flags.StringVar(&state.Dir, "state-dir", "", "`folder` of the engine's records to be removed too, when none is left in it; none by default")
	in.flags.StringVar(&state.RunDir, "run-dir", "", "`folder` of the engine's socket to be removed too; none by default")
	stay := in.yes("stay", "when all is done wait for SIGTERM: the containers of a DaemonSet must not end")
	if err := in.parse(args); err != nil {
		return err
	}
	if state.Dir != "" {
		in.check("state-dir", absolute(state.Dir))
	}
	if state.RunDir != "" {
		in.check("run-dir", absolute(state.RunDir))
	}
	if err := in.err(); err != nil {
		return err
	}
	f := &install.Folder{Dir: *dir, Log: slog.New(slog.NewTextHandler(std.stderr, nil))}
	if err := uninstall(f, state); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	if *stay {
		f.Log.Info("all is removed, waiting to be ended", "folder", *dir)
		<-ctx.Done()
	}
	return nil
}

// uninstall changes nothing where the state is needed still.
func uninstall(f *install.Folder, state install.State) error {
	if err := errors.Join(f.Check(), state.Check()); err != nil {
		return err
	}
	if err := f.Uninstall(); err != nil {
		return err
	}
	return state.Remove(f.Log)
}
