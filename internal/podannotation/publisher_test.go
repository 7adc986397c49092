package podannotation

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

func attachment(container string) engine.Attachment {
	return engine.Attachment{
		AttachmentID: engine.AttachmentID{ContainerID: container, IfName: "net1"},
		Network:      "lan", NAD: "default/lan", Wrapped: "ovn-k8s-cni-overlay",
		Pod: engine.Pod{Namespace: "default", Name: "web", UID: "u1"},
	}
}

func publication(container, addr string) engine.Publication {
	return engine.Publication{
		Attachment: attachment(container), OVN: true,
		HardwareAddr: net.HardwareAddr{0x0a, 0x58, 0xaa, 0xbb, 0xcc, 1},
		Addr:         netip.MustParsePrefix(addr), Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}
}

// within gives a call as long as it may take.
func within(t *testing.T, d time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return call(ctx)
}

func mustPublish(t *testing.T, w *world, p engine.Publication) {
	t.Helper()
	if err := within(t, time.Minute, func(ctx context.Context) error { return w.Publish(ctx, p) }); err != nil {
		t.Fatal(err)
	}
}

// says holds the annotation against what it should be.
func says(t *testing.T, w *world, key, want string) {
	t.Helper()
	if diff := cmp.Diff(want, w.annotation(t, "web", key)); diff != "" {
		t.Errorf("annotation %s (-want +got):\n%s", key, diff)
	}
}

func asked(t *testing.T, w *world, want string) {
	t.Helper()
	synctest.Wait()
	if got := w.since(); got != want {
		t.Errorf("asked the API: %s; want: %s", got, want)
	}
}

// The ADD of a container is one write and no read; its DEL is one write.
func TestK34OneWriteAnAdd(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		if err := w.Reset(t.Context(), attachment("c1"), engine.Container); err != nil {
			t.Fatal(err)
		}
		asked(t, w, "")
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		says(t, w, ovnKey, leasedText("10.0.0.5/24"))
		asked(t, w, "PATCH")

		mustPublish(t, w, publication("c1", "10.0.0.5/24")) // as after a restart
		asked(t, w, "")
		if err := w.Withdraw(t.Context(), attachment("c1")); err != nil {
			t.Fatal(err)
		}
		says(t, w, ovnKey, plain)
		asked(t, w, "PATCH")
		w.Forget(attachment("c1"))
		if len(w.works) != 0 {
			t.Errorf("left: %v", w.works)
		}
	})
}

// A virtual machine's entry says that its address comes by DHCP before there is one.
func TestK32ModeOfAVMIsEarly(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: leasedText("10.0.0.4/24")})
		if err := w.Reset(t.Context(), attachment("c1"), engine.VM); err != nil {
			t.Fatal(err)
		}
		early := strings.Replace(plain, `"role":"secondary"`, `"role":"secondary","ipam_mode":"dhcp"`, 1)
		says(t, w, ovnKey, early)
		asked(t, w, "PATCH")
		if err := w.Reset(t.Context(), attachment("c1"), engine.VM); err != nil {
			t.Fatal(err)
		}
		p := publication("c1", "10.0.0.5/24")
		p.Workload = engine.VM
		mustPublish(t, w, p)
		if got := w.annotation(t, "web", ovnKey); !strings.Contains(got, `"10.0.0.5/24"`) || strings.Count(got, "ipam_mode") != 1 {
			t.Errorf("got %s", got)
		}
		asked(t, w, "PATCH")
	})
}

// An entry that OVN-Kubernetes has not made yet does not hold the wrapped plugin up,
// and gets its mode when it is there.
func TestResetBeforeTheEntry(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{"other": "x"})
		if err := w.Reset(t.Context(), attachment("c1"), engine.VM); err != nil {
			t.Fatal(err)
		}
		asked(t, w, "")
		w.annotate("web", ovnKey, plain)
		time.Sleep(2 * debounce)
		asked(t, w, "PATCH")
		if got := w.annotation(t, "web", ovnKey); !strings.Contains(got, `"ipam_mode":"dhcp"`) {
			t.Errorf("got %s", got)
		}
	})
}

// Publish waits for an entry that comes late, also where the watch has ended; when
// it does not come, the error says what is missing.
func TestPublishBeforeTheEntry(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{"other": "x"})
		errC := make(chan error, 1)
		go func() { errC <- w.Publish(t.Context(), publication("c1", "10.0.0.5/24")) }()
		time.Sleep(50 * time.Millisecond)
		w.annotate("web", ovnKey, plain)
		if err := <-errC; err != nil {
			t.Fatal(err)
		}
		asked(t, w, "PATCH")
		says(t, w, ovnKey, leasedText("10.0.0.5/24"))
	})
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{"other": "x"})
		err := within(t, 10*time.Second, func(ctx context.Context) error { return w.Publish(ctx, publication("c1", "10.0.0.5/24")) })
		if err == nil || !strings.Contains(err.Error(), `there is no entry of OVN-Kubernetes "default/lan"`) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.unwatched()
		w.annotate("web", ovnKey, plain)
		time.Sleep(2 * time.Minute)
		says(t, w, ovnKey, leasedText("10.0.0.5/24"))
	})
}

// An address that changes is taken away and then written: NetworkQoS looks at the
// number of addresses only.
func TestChangedAddressInTwoWrites(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		asked(t, w, "PATCH")
		var seen []string
		w.api.changed = func(_, pod *podT) { seen = append(seen, pod.Annotations[ovnKey]) }
		mustPublish(t, w, publication("c1", "10.0.0.6/24"))
		asked(t, w, "PATCH, PATCH")
		between := strings.Replace(plain, `"role":"secondary"`, `"role":"secondary","ipam_mode":"dhcp"`, 1)
		if len(seen) != 2 || seen[0] != between {
			t.Errorf("seen: %q", seen)
		}
		says(t, w, ovnKey, strings.Replace(between, `"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","ipam_mode":"dhcp"`,
			`"ip_addresses":["10.0.0.6/24"],"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","ipam_mode":"dhcp","gateway_ips":["10.0.0.1"]`, 1))
		if n := w.value(t, metricPutBack, ""); n != 0 {
			t.Errorf("%v put back", n)
		}
	})
}

// A newer sandbox owns the entry: what an older one says changes nothing, and a pod
// made again under its name is another one.
func TestSupersededSandboxWritesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		if err := w.Reset(t.Context(), attachment("c2"), engine.Container); err != nil {
			t.Fatal(err)
		}
		says(t, w, ovnKey, strings.Replace(plain, `"role":"secondary"`, `"role":"secondary","ipam_mode":"dhcp"`, 1))
		w.since()
		if err := w.Publish(t.Context(), publication("c1", "10.0.0.5/24")); !errors.Is(err, engine.ErrSuperseded) {
			t.Errorf("Publish: %v", err)
		}
		if err := w.Withdraw(t.Context(), attachment("c1")); err != nil {
			t.Errorf("Withdraw: %v", err)
		}
		asked(t, w, "")
		mustPublish(t, w, publication("c2", "10.0.0.6/24"))
		w.since()

		w.pod("web", "u2", map[string]string{ovnKey: plain})
		synctest.Wait()
		if err := w.Publish(t.Context(), publication("c2", "10.0.0.6/24")); !errors.Is(err, engine.ErrSuperseded) {
			t.Errorf("Publish for another pod's UID: %v", err)
		}
		if err := w.Withdraw(t.Context(), attachment("c2")); err != nil {
			t.Errorf("Withdraw for another pod's UID: %v", err)
		}
		says(t, w, ovnKey, plain)
		if got := w.since(); strings.Contains(got, "PATCH") {
			t.Errorf("asked the API: %s", got)
		}
	})
}

// The pod is made again between the look and the write.
func TestPodMadeAgainDuringAWrite(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		w.fail(func(method string, n int) (int, http.Header, error) {
			if n == 0 {
				pod := w.pods["default/web"].DeepCopy()
				pod.UID = "u2"
				w.store(pod)
			}
			return 0, nil, nil
		})
		w.lag = map[string]*podT{"default/web": w.pods["default/web"]}
		if err := w.Publish(t.Context(), publication("c1", "10.0.0.5/24")); !errors.Is(err, engine.ErrSuperseded) {
			t.Errorf("got %v", err)
		}
		asked(t, w, "PATCH 422, GET")
		says(t, w, ovnKey, plain)
	})
}

// A pod that is deleted in the middle: Publish says so, Withdraw has nothing to do.
func TestPodDeleted(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		w.lag = map[string]*podT{"default/web": w.pods["default/web"]}
		w.remove("web")
		synctest.Wait()
		if err := w.Publish(t.Context(), publication("c1", "10.0.0.5/24")); !errors.Is(err, engine.ErrSuperseded) {
			t.Errorf("Publish: %v", err)
		}
		w.lag = nil
		if err := w.Withdraw(t.Context(), attachment("c1")); err != nil {
			t.Errorf("Withdraw: %v", err)
		}
		if len(w.works) != 0 || len(w.table.All()) != 0 {
			t.Errorf("left: %v, %v", w.works, w.table.All())
		}
		time.Sleep(time.Hour)
		asked(t, w, "PATCH 404, GET 404")
	})
}

// Other plugins' interfaces are in an annotation of ours, which is made and removed.
func TestOwnAnnotation(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{"k8s.v1.cni.cncf.io/networks": "lan, lan"})
		p := publication("c1", "10.0.0.5/24")
		p.Wrapped, p.OVN = "macvlan", false
		if err := w.Reset(t.Context(), p.Attachment, engine.Container); err != nil {
			t.Fatal(err)
		}
		mustPublish(t, w, p)
		first := `"default/lan":{"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","ip_addresses":["10.0.0.5/24"],"gateway_ips":["10.0.0.1"],"ipam_mode":"dhcp"}`
		says(t, w, podnetworks.OwnKey, "{"+first+"}")
		asked(t, w, "PATCH")

		q := publication("c1", "10.0.0.6/24")
		q.Wrapped, q.OVN, q.IfName, q.HardwareAddr = "macvlan", false, "net2", net.HardwareAddr{0x0a, 0x58, 0xaa, 0xbb, 0xcc, 2}
		mustPublish(t, w, q)
		second := `"default/lan/1":{"mac_address":"0a:58:aa:bb:cc:02","role":"secondary","ip_addresses":["10.0.0.6/24"],"gateway_ips":["10.0.0.1"],"ipam_mode":"dhcp"}`
		says(t, w, podnetworks.OwnKey, "{"+first+","+second+"}")

		if err := w.Withdraw(t.Context(), p.Attachment); err != nil {
			t.Fatal(err)
		}
		says(t, w, podnetworks.OwnKey, "{"+second+"}")
		if err := w.Withdraw(t.Context(), q.Attachment); err != nil {
			t.Fatal(err)
		}
		if _, there := w.pods["default/web"].Annotations[podnetworks.OwnKey]; there {
			t.Error("the annotation is still there")
		}
	})
}

// A pod without any annotation, and one whose annotations the cache has left out.
func TestPodWithoutAnnotations(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		p := publication("c1", "10.0.0.5/24")
		p.Wrapped, p.OVN = "macvlan", false
		w.pod("web", "u1", nil)
		mustPublish(t, w, p)
		asked(t, w, "PATCH")
		if got := w.annotation(t, "web", podnetworks.OwnKey); !strings.Contains(got, "10.0.0.5/24") {
			t.Errorf("got %s", got)
		}
		w.Forget(p.Attachment)

		w.pod("web", "u1", map[string]string{"kept": "x"})
		trimmed := w.pods["default/web"].DeepCopy()
		trimmed.Annotations = nil
		w.lag = map[string]*podT{"default/web": trimmed}
		mustPublish(t, w, p)
		asked(t, w, "PATCH 422, GET, PATCH")
		if got := w.annotation(t, "web", "kept"); got != "x" {
			t.Errorf("the other annotation is %q", got)
		}
	})
}

// Two interfaces of one NAD: OVN-Kubernetes numbers the entries.
func TestTwoInterfacesOfOneNAD(t *testing.T) {
	two := `{"default/lan":{"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01"},"default/lan/1":{"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:02"}}`
	tests := []struct {
		name, networks, ifName string
		mac                    byte
		want                   string // of the entries' addresses
		err                    string
	}{
		{name: "OK by MAC", ifName: "net2", mac: 2, want: "null, 10.0.0.5/24"},
		{name: "OK MAC before order", networks: "lan,lan", ifName: "net2", mac: 1, want: "10.0.0.5/24, null"},
		{name: "OK by order", networks: "lan,lan", ifName: "net2", mac: 9, want: "null, 10.0.0.5/24"},
		{name: "bad neither", ifName: "net2", mac: 9, err: "cannot be told"},
		{name: "bad third", networks: "lan,lan,lan", ifName: "net3", mac: 9, err: `no entry of OVN-Kubernetes "default/lan/2"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.pod("web", "u1", map[string]string{ovnKey: two, podnetworks.NetworksKey: tt.networks})
				p := publication("c1", "10.0.0.5/24")
				p.IfName, p.HardwareAddr[5] = tt.ifName, tt.mac
				err := within(t, time.Second, func(ctx context.Context) error { return w.Publish(ctx, p) })
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) {
						t.Errorf("got %v, want it to say %s", err, tt.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				a, err := podnetworks.Parse(w.annotation(t, "web", ovnKey))
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, key := range a.Keys("default/lan") {
					text := "null"
					if e, _, _ := a.Entry(key); len(e.Addrs) > 0 {
						text = e.Addrs[0].String()
					}
					got = append(got, text)
				}
				if strings.Join(got, ", ") != tt.want {
					t.Errorf("got %q, want %s", got, tt.want)
				}
			})
		})
	}
}
