package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dhcp-meta/dhcp-meta/internal/build"
)

// Where the engines are, as manifests/ installs them.
const (
	engineNamespace = "dhcp-meta"
	engineLabel     = "app.kubernetes.io/name=dhcp-engine"
	engineContainer = "engine"
)

// input reads the command line of a subcommand: its own flags, and those by which
// kubectl finds a cluster.
type input struct {
	flags     *pflag.FlagSet
	operands  string // for the help
	config    *clientcmd.ConfigOverrides
	loading   *clientcmd.ClientConfigLoadingRules
	namespace *string // of the engines
}

func newInput(name, operands string) *input {
	in := &input{
		flags: pflag.NewFlagSet(name, pflag.ContinueOnError), operands: operands,
		config: &clientcmd.ConfigOverrides{}, loading: clientcmd.NewDefaultClientConfigLoadingRules(),
	}
	in.flags.SetOutput(io.Discard) // run writes all errors, in one form
	in.flags.SortFlags = false
	clientcmd.BindOverrideFlags(in.config, in.flags, clientcmd.RecommendedConfigOverrideFlags(""))
	in.flags.VisitAll(func(f *pflag.Flag) {
		f.Hidden = !slices.Contains([]string{clientcmd.FlagContext, clientcmd.FlagNamespace}, f.Name)
	})
	in.flags.StringVar(&in.loading.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "`file` to find the cluster by, as for kubectl")
	in.namespace = in.flags.String("engine-namespace", engineNamespace, "`namespace` of the dhcp-engine pods")
	return in
}

// parse reads args and returns the operands, of which there must be from least to
// most.
func (in *input) parse(args []string, least, most int) ([]string, error) {
	name := in.flags.Name()
	err := in.flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return nil, helpError(strings.TrimRight("Usage: kubectl dhcp "+name+" [flags] "+in.operands, " ") + "\n\n" + in.flags.FlagUsages() +
			"\nAll of kubectl's own flags for a connection are taken too.\n")
	case err != nil:
		return nil, usageError{fmt.Errorf("%s: %w (kubectl dhcp %s -h lists the flags)", name, err, name)}
	case in.flags.NArg() < least:
		return nil, usageError{fmt.Errorf("%s: %s is missing (kubectl dhcp %s -h tells more)", name, in.operands, name)}
	case in.flags.NArg() > most:
		return nil, usageError{fmt.Errorf("%s: unexpected argument %q", name, in.flags.Arg(most))}
	}
	return in.flags.Args(), nil
}

// cluster is how the engines of a cluster are reached.
type cluster struct {
	rest   *rest.Config
	client kubernetes.Interface
	// namespace is the one that was asked for, engines that of the engines.
	namespace, engines string
}

// connect finds the cluster; nothing is sent yet.
func (in *input) connect() (*cluster, error) {
	found := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(in.loading, in.config)
	cfg, err := found.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find a cluster: %w", err)
	}
	namespace, _, err := found.Namespace()
	if err != nil {
		return nil, fmt.Errorf("find a namespace: %w", err)
	}
	cfg.UserAgent = "kubectl-dhcp/" + build.Version()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of the Kubernetes API: %w", err)
	}
	return &cluster{rest: cfg, client: client, namespace: namespace, engines: *in.namespace}, nil
}
