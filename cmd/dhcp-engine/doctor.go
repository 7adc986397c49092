package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dhcp-meta/dhcp-meta/internal/build"
	"github.com/dhcp-meta/dhcp-meta/internal/doctor"
	"github.com/dhcp-meta/dhcp-meta/internal/kube"
	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
)

// runDoctor is `dhcp-engine doctor`. It has the engine's own settings, from the same
// variables, since it looks at what the engine sees.
func runDoctor(ctx context.Context, args []string, std streams) error {
	in := newInput("doctor", std.environment)
	r := declareEngine(in)
	output := in.output()
	bin := in.binDir()
	network := in.flags.String("network", "", "`namespace/name` of a network, or the name in its configuration, on which a DHCPDISCOVER is sent, on the interface of a pod that is on it")
	if err := in.parse(args); err != nil {
		return err
	}
	cfg := in.config(r)
	if ns, name, ok := strings.Cut(*network, "/"); ok && (ns == "" || name == "") {
		in.check("network", fmt.Errorf("%q is neither namespace/name nor the name in a configuration", *network))
	}
	if err := in.err(); err != nil {
		return err
	}
	exam := examine(cfg)
	exam.BinDir, exam.Network = *bin, *network
	exam.InPod = std.environment.get("KUBERNETES_SERVICE_HOST") != "" // each container has it
	report := doctor.Run(ctx, exam)
	var err error
	if *output == "json" {
		err = writeJSON(std.stdout, report)
	} else {
		err = report.Write(std.stdout)
	}
	if err != nil {
		return err
	}
	if n := report.Count(doctor.Error); n > 0 {
		return fmt.Errorf("doctor: errors: %d", n)
	}
	return nil
}

// examine says where the engine of cfg is to be found, and what it reaches.
func examine(cfg config) doctor.Config {
	exam := doctor.Config{
		Version: build.Version(), Socket: cfg.socket, StateDir: cfg.stateDir, MetricsAddress: cfg.metricsAddress,
		DHCPSocket: cfg.dropIn.socket, DHCPTimeout: cfg.dropIn.timeout, NetnsRoots: cfg.dropIn.roots(cfg.netnsRoots),
		VFIOWindow: cfg.vfio.window, NodeName: cfg.kubernetes.node, LeaseObjects: cfg.kubernetes.leaseObjects,
		Northbound: ovnnb.Config{
			Address: cfg.northbound.address,
			TLS:     ovnnb.TLS{CA: cfg.northbound.ca, Certificate: cfg.northbound.cert, Key: cfg.northbound.key},
		},
		Installer: planOf,
	}
	if own, err := os.Executable(); err == nil {
		exam.OwnPlugin = filepath.Join(filepath.Dir(own), "dhcp-meta")
	}
	if cfg.kubernetes.on {
		exam.Kubernetes, exam.Connect = kube.Connect(cfg.kubernetes.kubeconfig)
	}
	return exam
}
