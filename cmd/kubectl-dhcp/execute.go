package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// execute runs dhcp-engine with args in an engine's container. The error is an
// exec.CodeExitError when it has run and failed.
func (c *cluster) execute(ctx context.Context, engine corev1.Pod, std streams, args ...string) error {
	url := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(engine.Namespace).Name(engine.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: engineContainer, Command: append([]string{"dhcp-engine"}, args...), Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	// Servers before Kubernetes 1.30 know no other than the second.
	websocket, err := remotecommand.NewWebSocketExecutor(c.rest, "GET", url.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.rest, "POST", url)
	if err != nil {
		return err
	}
	either, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	err = either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: std.stdout, Stderr: std.stderr})
	var ended exec.CodeExitError
	switch {
	case err == nil, errors.As(err, &ended):
		return err
	case context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	}
	hint := "look at kubectl -n " + engine.Namespace + " describe pod " + engine.Name
	if apierrors.IsForbidden(err) {
		hint = "the rights to get and create pods/exec in namespace " + engine.Namespace + " are needed"
	}
	return fmt.Errorf("run dhcp-engine %s in pod %s/%s of node %s: %w; %s", args[0], engine.Namespace, engine.Name, engine.Spec.NodeName, err, hint)
}

// ask executes, and returns what was written to standard output; what a failure has to
// say is in the error.
func (c *cluster) ask(ctx context.Context, engine corev1.Pod, args ...string) ([]byte, error) {
	if err := c.usable(engine); err != nil {
		return nil, err
	}
	var stdout, stderr strings.Builder
	err := c.execute(ctx, engine, streams{&stdout, &stderr}, args...)
	var ended exec.CodeExitError
	if errors.As(err, &ended) {
		said, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("dhcp-engine %s of node %s: exit code %d: %s", args[0], engine.Spec.NodeName, ended.Code, said)
	}
	return []byte(stdout.String()), err
}
