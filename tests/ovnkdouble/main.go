package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
)

// pluginName is the type of the networks that OVN-Kubernetes manages.
const pluginName = "ovn-k8s-cni-overlay"

func main() {
	if filepath.Base(os.Args[0]) == pluginName {
		os.Exit(cniMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := ovnkube(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ovnkube:", err)
		os.Exit(1)
	}
}

// ovnkube runs controller and CNI server until ctx ends.
func ovnkube(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "`file` that tells how to reach the API")
	node := flag.String("node", "", "`name` of this node")
	subnet := flag.String("subnet", "10.244.0.0/24", "`prefix` of the default network on this node")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))

	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	cfg.UserAgent = "ovnkube"
	cfg.QPS, cfg.Burst = 100, 200
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	nads, err := nadclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	c, err := newController(client, nads, *node, *subnet, log)
	if err != nil {
		return err
	}
	// The real one serves its socket when its controllers have started.
	if err := c.start(ctx); err != nil {
		return err
	}
	return serveCNI(ctx, c)
}
