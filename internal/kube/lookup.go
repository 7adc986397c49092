package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/api"
)

// liveLimit bounds a question to an API server that does not answer. A plugin
// waits for the answer, and its runtime can try again.
const liveLimit = 5 * time.Second

// findPod is the pod that an attachment is of: from the cache, and where that has
// none, or one with another UID, from the API itself, since an ADD may be ahead of
// the watch.
func (c *Cluster) findPod(ctx context.Context, want engine.Pod) (*corev1.Pod, error) {
	if want.Name == "" || want.Namespace == "" {
		return nil, fmt.Errorf("the runtime told no pod: %w", engine.ErrNoPod)
	}
	if pod, ok := c.Pod(want.Namespace, want.Name); ok && isPod(pod, want) {
		return pod, nil
	}
	pod, err := c.livePod(ctx, want)
	switch {
	case err != nil:
		return nil, err
	case pod == nil:
		return nil, fmt.Errorf("pod %s/%s: %w", want.Namespace, want.Name, engine.ErrNoPod)
	case !isPod(pod, want):
		return nil, fmt.Errorf("pod %s/%s has uid %s now, not %s: %w", want.Namespace, want.Name, pod.UID, want.UID, engine.ErrNoPod)
	}
	return pod, nil
}

// livePod asks the API itself, for the newest that it has; nil: there is none.
func (c *Cluster) livePod(ctx context.Context, want engine.Pod) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, liveLimit)
	defer cancel()
	pod, err := c.client.CoreV1().Pods(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if found, err := c.liveRead("pod", want.Namespace+"/"+want.Name, err); !found {
		return nil, err
	}
	trimmed, err := trimPod(pod)
	pod, _ = trimmed.(*corev1.Pod)
	return pod, err
}

// isPod tells whether pod is the one that the runtime means. A static pod's UID at
// the runtime is not that of its mirror in the API.
func isPod(pod *corev1.Pod, want engine.Pod) bool {
	return want.UID == "" || string(pod.UID) == want.UID || pod.Annotations[mirrorAnnotation] == want.UID
}

// findNAD is the NetworkAttachmentDefinition "<namespace>/<name>", from the cache
// or from the API itself; nil: there is none.
func (c *Cluster) findNAD(ctx context.Context, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	if nad, ok := c.nad(name); ok {
		return nad, nil
	}
	namespace, short, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || short == "" || strings.Contains(short, "/") {
		return nil, api.WithCode(api.CodeConfig, fmt.Errorf("%q is no NetworkAttachmentDefinition: write <namespace>/<name>", name))
	}
	ctx, cancel := context.WithTimeout(ctx, liveLimit)
	defer cancel()
	nad, err := c.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Get(ctx, short, metav1.GetOptions{})
	if found, err := c.liveRead("network", name, err); !found {
		return nil, err
	}
	return nad, nil
}

// liveRead counts a read and tells whether it found the object. That there is none
// is no error; what else went wrong may be mended by a retry.
func (c *Cluster) liveRead(what, name string, err error) (found bool, _ error) {
	switch {
	case err == nil:
		c.metrics.liveReads.WithLabelValues(what, "found").Inc()
		return true, nil
	case apierrors.IsNotFound(err):
		c.metrics.liveReads.WithLabelValues(what, "missing").Inc()
		return false, nil
	}
	c.metrics.liveReads.WithLabelValues(what, "error").Inc()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s: %w", liveLimit, err)
	}
	return false, api.WithCode(api.CodeTryAgain, fmt.Errorf("ask the Kubernetes API for %s %s: %w", what, name, err))
}

// Marked tells whether a definition carries our annotation.
func (c *Cluster) Marked(ctx context.Context, nad string) (bool, error) {
	found, err := c.findNAD(ctx, nad)
	return found != nil && annotated(found), err
}

// Ending tells whether a pod is in the cache and is being deleted.
func (c *Cluster) Ending(pod engine.Pod) bool {
	known, ok := c.Pod(pod.Namespace, pod.Name)
	return ok && isPod(known, pod) && isEnding(known)
}

// Gone tells whether a pod is over. A pod of which no UID is known is over when
// there is none of its name.
func (c *Cluster) Gone(ctx context.Context, pod engine.Pod) (bool, error) {
	if pod.Name == "" || pod.Namespace == "" {
		return false, nil
	}
	if known, ok := c.Pod(pod.Namespace, pod.Name); ok && isPod(known, pod) {
		return false, nil
	}
	live, err := c.livePod(ctx, pod)
	if err != nil {
		return false, err
	}
	return live == nil || !isPod(live, pod), nil
}
