package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/dhcp-meta/dhcp-meta/internal/kube"
	"github.com/dhcp-meta/dhcp-meta/internal/leaseobjects"
	"github.com/dhcp-meta/dhcp-meta/internal/ovnnb"
	"github.com/dhcp-meta/dhcp-meta/internal/podannotation"
	"github.com/dhcp-meta/dhcp-meta/internal/publish"
	"github.com/dhcp-meta/dhcp-meta/internal/vfio"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

// borrowedNetns is where the namespaces of borrowed devices have their names. The
// engine enters them as it enters those of pods.
const borrowedNetns = "/run/dhcp-meta/netns"

// outside is the world beyond the node's interfaces, as far as cfg has the engine
// see it.
type outside struct {
	// run are what must run beside the engine. They end with their context, without
	// an error.
	run []func(context.Context) error
}

// connect fills in what of cfg reaches Kubernetes, OVN and PCI devices. Nothing is
// dialed yet: an API that is away is waited for by whoever needs it.
func (o *outside) connect(cfg config, into *engine.Config, registry prometheus.Registerer) error {
	devices, err := vfio.New(vfio.Config{
		StateDir: cfg.stateDir, NetnsDir: borrowedNetns, Window: cfg.vfio.window, Policy: cfg.vfio.policy,
		Log: into.Log, Metrics: vfio.NewMetrics(registry),
	})
	if err != nil {
		return err
	}
	into.Devices, into.Window = devices, cfg.vfio.window
	o.run = append(o.run, devices.Run)
	if !cfg.kubernetes.on {
		return nil
	}
	kube.RedirectClientLog(into.Log)
	rest, err := kube.Connect(cfg.kubernetes.kubeconfig)
	if err != nil {
		return err
	}
	cluster, err := kube.New(kube.Config{
		REST: rest, NodeName: cfg.kubernetes.node, StateDir: cfg.stateDir, Log: into.Log, Metrics: registry,
	})
	if err != nil {
		return err
	}
	annotations := podannotation.New(podannotation.Config{Client: cluster.Client(), Pods: cluster, Log: into.Log, Metrics: registry})
	cluster.OnPod(annotations.PodChanged)
	into.Cluster, into.Reporter, into.Publisher = cluster, cluster.Events(), annotations
	o.run = append(o.run, cluster.Run, annotations.Run)
	if cfg.kubernetes.leaseObjects {
		objects, err := leaseobjects.New(leaseobjects.Config{REST: rest, NodeName: cfg.kubernetes.node, Pods: cluster, Log: into.Log, Metrics: registry})
		if err != nil {
			return err
		}
		into.Observer = objects
		o.run = append(o.run, objects.Run)
	}
	if cfg.northbound.address == "" {
		return nil
	}
	ports, err := ovnnb.New(ovnnb.Config{
		Address: cfg.northbound.address,
		TLS:     ovnnb.TLS{CA: cfg.northbound.ca, Certificate: cfg.northbound.cert, Key: cfg.northbound.key},
		Log:     into.Log, Metrics: registry,
	})
	if err != nil {
		return fmt.Errorf("reach OVN's north database: %w", err)
	}
	into.Publisher = publish.Both(into.Log, annotations, ports)
	into.Limited = ports.Limited
	o.run = append(o.run, ports.Run)
	return nil
}

// start runs all of it in g until ctx ends.
func (o *outside) start(ctx context.Context, g *errgroup.Group) {
	for _, run := range o.run {
		g.Go(func() error { return run(ctx) })
	}
}
