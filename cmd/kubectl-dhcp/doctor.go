package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/util/exec"
)

// runDoctor is `kubectl dhcp doctor`.
func runDoctor(ctx context.Context, args []string, std streams) error {
	in := newInput("doctor", "")
	node := in.flags.String("node", "", "look at this `node` alone; without it at all, one after another")
	network := in.flags.String("network", "", "send a DHCPDISCOVER too, on this network, `namespace/name` of its NetworkAttachmentDefinition, or the name in its configuration")
	output := in.flags.StringP("output", "o", "table", "`format`, table or json")
	if _, err := in.parse(args, 0, 0); err != nil {
		return err
	}
	c, err := in.connect()
	if err != nil {
		return err
	}
	engines, err := c.enginesOn(ctx, *node)
	if err != nil {
		return err
	}
	verb := []string{"doctor", "-o", *output}
	if *network != "" {
		verb = append(verb, "--network", *network)
	}
	var worst error
	for _, engine := range engines {
		if len(engines) > 1 {
			_, _ = fmt.Fprintf(std.stderr, "== node %s\n", engine.Spec.NodeName)
		}
		err := c.usable(engine)
		if err == nil {
			err = c.execute(ctx, engine, std, verb...)
		}
		var ended exec.CodeExitError
		switch {
		case err == nil:
		case len(engines) == 1, ctx.Err() != nil:
			return err
		case !errors.As(err, &ended):
			_, _ = fmt.Fprintf(std.stderr, "kubectl dhcp: %v\n", err)
			worst = exec.CodeExitError{Err: err, Code: exitFailed}
		case worst == nil:
			worst = err
		}
	}
	return worst
}
