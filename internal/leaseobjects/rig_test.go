package leaseobjects

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine/dhcp4"
)

// lab is a controller with an API and the pods of a node, on simulated time.
type lab struct {
	t *testing.T
	*api
	*Controller
	mu   sync.Mutex
	pods map[string]*corev1.Pod
	log  strings.Builder
}

func simulate(t *testing.T, f func(*testing.T, *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{t: t, api: newAPI(), pods: make(map[string]*corev1.Pod)}
		l.pod("web-0", "uid-0")
		f(t, l)
	})
}

func (l *lab) pod(name, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods["shop/"+name] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}}
}

func (l *lab) Pod(namespace, name string) (*corev1.Pod, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod, known := l.pods[namespace+"/"+name]
	return pod, known
}

func (l *lab) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}

// logged is how many lines of warn and info there are.
func (l *lab) logged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.log.String(), "\n")
}

// start makes a controller and runs it until stop.
func (l *lab) start() (stop func()) {
	l.t.Helper()
	var err error
	l.Controller, err = New(Config{
		REST: &rest.Config{Host: "http://api", Transport: l.api}, NodeName: "worker-1", Pods: l, Log: slog.New(slog.NewTextHandler(l, nil)),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	endC := make(chan error, 1)
	run := l.Run
	go func() { endC <- run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-endC; err != nil {
				l.t.Errorf("Run: %v", err)
			}
		})
	}
	l.t.Cleanup(stop)
	return stop
}

// wantWrites compares what was written since the last time, after a second.
func (l *lab) wantWrites(want ...string) {
	l.t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	if diff := cmp.Diff(want, l.since()); diff != "" {
		l.t.Errorf("written (-want +got):\n%s", diff)
	}
}

func (l *lab) object(pod, uid string) (Lease, bool) {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	o := l.objects["shop/"+nameOf(pod, uid, "net1")]
	if o == nil {
		return Lease{}, false
	}
	return *o, true
}

// leased is an attachment of net1 in a pod with a lease that is renewed at at.
func leased(container, pod, uid string, at time.Time) engine.Observation {
	return engine.Observation{
		Attachment: engine.Attachment{
			AttachmentID: engine.AttachmentID{ContainerID: container, IfName: "net1"}, Network: "lan", NAD: "shop/lan",
			Pod: engine.Pod{Namespace: "shop", Name: pod, UID: uid},
		},
		Phase: engine.Leased, State: dhcp4.Bound, Kept: true, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Granted: at,
		Lease: dhcp4.Lease{Addr: netip.MustParsePrefix("10.77.0.50/24"), Server: netip.MustParseAddr("10.77.0.1"), Lifetime: time.Hour},
	}
}

func phase(o engine.Observation, p engine.Phase) engine.Observation {
	o.Phase = p
	if p != engine.Leased && p != engine.Orphaned {
		o.Lease = dhcp4.Lease{}
	}
	return o
}

var web0 = "shop/" + nameOf("web-0", "uid-0", "net1")
