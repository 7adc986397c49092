package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// input reads the settings of a subcommand from flags and the environment, and
// gathers what is wrong with them.
type input struct {
	flags       *flag.FlagSet
	environment variables
	// env has, by flag, what takes the value of its variable; after parse only
	// those whose variable was taken.
	env      map[string]func(string)
	settings []setting
	problems []error
	// checks look at what was given, after parse.
	checks []func()
	// operands are what stands on the command line besides flags, all required.
	operands []operand
}

// setting is what has a variable beside its flag.
type setting struct {
	name, standard string
	value          func() string
}

type operand struct {
	name  string
	value *string
}

func newInput(command string, environment variables) *input {
	return &input{
		flags:       flag.NewFlagSet(command, flag.ContinueOnError),
		environment: environment,
		env:         make(map[string]func(string)),
	}
}

// text declares a setting. Its value is there after parse, as those of all.
func (in *input) text(name, value, help string) *string {
	v := in.flagOnly(name, value, help)
	in.setting(name, value, func(s string) { *v = s }, func() string { return *v })
	return v
}

// flagOnly declares a setting without a variable.
func (in *input) flagOnly(name, value, help string) *string {
	if value != "" {
		help += "; default " + value
	}
	return in.flags.String(name, value, help)
}

// list declares a setting that is given by repeating its flag.
func (in *input) list(name string, value []string, help string) *[]string {
	v := &value
	given := false
	in.flags.Func(name, help+"; default "+strings.Join(value, ":"), func(s string) error {
		if !given { // the first one replaces the default
			given, *v = true, nil
		}
		*v = append(*v, s)
		return nil
	})
	in.setting(name, strings.Join(value, ":"), func(s string) { *v = strings.Split(s, ":") }, func() string { return strings.Join(*v, ":") })
	return v
}

// operand declares a word of the command line that is no flag.
func (in *input) operand(name string) *string {
	v := new(string)
	in.operands = append(in.operands, operand{name, v})
	return v
}

// yes declares a wish that is a flag alone, without a variable: what is said with
// it is said for one call.
func (in *input) yes(name, help string) *bool { return in.flags.Bool(name, false, help) }

// duration declares a length of time without a variable.
func (in *input) duration(name string, value time.Duration, help string) *time.Duration {
	return in.flags.Duration(name, value, help+"; default "+value.String())
}

// boolean declares a setting that is true or false. Its value is text, so that a
// wrong one is a problem among the others.
func (in *input) boolean(name, value, help string) *string {
	v := &value
	in.flags.BoolFunc(name, help+"; default "+value, func(s string) error { *v = s; return nil })
	in.setting(name, value, func(s string) { *v = s }, func() string { return *v })
	return v
}

func (in *input) setting(name, standard string, set func(string), value func() string) {
	in.env[name] = set
	in.settings = append(in.settings, setting{name, standard, value})
}

// changed are the settings that do not have their default, by the names of their flags,
// after parse. A list is written as its variable would have it.
func (in *input) changed() []slog.Attr {
	var all []slog.Attr
	for _, s := range in.settings {
		if value := s.value(); value != s.standard {
			all = append(all, slog.String(s.name, value))
		}
	}
	return all
}

// parse reads args, flags and operands in any order, and the environment for what
// they do not give. Its error is a usageError, or the help where that was asked
// for.
func (in *input) parse(args []string) error {
	name := in.flags.Name()
	in.flags.SetOutput(io.Discard) // run writes all errors, in one form
	given := 0
	for {
		err := in.flags.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return helpError(in.help())
		case err != nil:
			return usageError{fmt.Errorf("%s: %w (dhcp-engine %s -h lists the flags)", name, err, name)}
		}
		if in.flags.NArg() == 0 {
			break
		}
		if given == len(in.operands) {
			return usageError{fmt.Errorf("%s: unexpected argument %q", name, in.flags.Arg(0))}
		}
		*in.operands[given].value = in.flags.Arg(0) // flag stops there
		given++
		args = in.flags.Args()[1:]
	}
	if given < len(in.operands) {
		return usageError{fmt.Errorf("%s: %s is missing (dhcp-engine %s -h tells more)", name, in.operands[given].name, name)}
	}
	in.flags.Visit(func(f *flag.Flag) { delete(in.env, f.Name) })
	for name, set := range in.env {
		if s := in.environment.get(envName(name)); s != "" {
			set(s)
		} else {
			delete(in.env, name)
		}
	}
	in.problems = append(in.problems, in.environment.unknown()...)
	for _, check := range in.checks {
		check()
	}
	return nil
}

func (in *input) help() string {
	text := "Usage: dhcp-engine " + in.flags.Name() + " [flags]"
	for _, o := range in.operands {
		text += " " + o.name
	}
	text += "\n"
	if len(in.env) > 0 {
		text += "\nA flag wins over its environment variable.\n"
	}
	in.flags.VisitAll(func(f *flag.Flag) {
		value, help := flag.UnquoteUsage(f)
		text += strings.TrimRight("\n  "+dashes(f.Name)+" "+value, " ")
		if in.env[f.Name] != nil {
			text += "  (" + envName(f.Name) + ")"
		}
		text += "\n        " + help + "\n"
	})
	return text
}

func dashes(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// check notes a problem of a setting, under the name by which it was given.
func (in *input) check(name string, err error) {
	if err == nil {
		return
	}
	given := dashes(name)
	if in.env[name] != nil {
		given = envName(name)
	}
	in.problems = append(in.problems, fmt.Errorf("%s: %w", given, err))
}

// err is a usageError with all problems that were noted.
func (in *input) err() error {
	switch len(in.problems) {
	case 0:
		return nil
	case 1:
		return usageError{fmt.Errorf("%s: %w", in.flags.Name(), in.problems[0])}
	}
	return usageError{fmt.Errorf("%s: %d problems:\n%w", in.flags.Name(), len(in.problems), errors.Join(in.problems...))}
}
