package podannotation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/pkg/engine"
)

type podT = corev1.Pod

// What passes is tried again within the call's time.
func TestP07TransientFailuresAreTriedAgain(t *testing.T) {
	code := func(c int) func(string, int) (int, http.Header, error) {
		return func(_ string, n int) (int, http.Header, error) {
			if n < 2 {
				return c, nil, nil
			}
			return 0, nil, nil
		}
	}
	tests := []struct {
		name   string
		answer func(string, int) (int, http.Header, error)
		want   string
	}{
		{"500", code(500), "PATCH 500, GET 500, GET, PATCH"},
		{"503", code(503), "PATCH 503, GET 503, GET, PATCH"},
		{"401, an expired token", code(401), "PATCH 401, GET 401, GET, PATCH"},
		{"connection refused", func(_ string, n int) (int, http.Header, error) {
			if n < 2 {
				return 0, nil, errRefusedConnection
			}
			return 0, nil, nil
		}, "PATCH 0, GET 0, GET, PATCH"},
		{"429", func(_ string, n int) (int, http.Header, error) {
			if n < 2 {
				return 429, http.Header{"Retry-After": {"3"}}, nil
			}
			return 0, nil, nil
		}, "PATCH 429, PATCH 429, PATCH"}, // the client itself waits
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.pod("web", "u1", map[string]string{ovnKey: plain})
				w.fail(tt.answer)
				began := time.Now()
				mustPublish(t, w, publication("c1", "10.0.0.5/24"))
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("took %s", took)
				}
				asked(t, w, tt.want)
				says(t, w, ovnKey, leasedText("10.0.0.5/24"))
			})
		})
	}
}

// Somebody else writes at the same time: our change is made on top of theirs.
func TestK41ConcurrentWriterIsKept(t *testing.T) {
	theirs := strings.Replace(plain, `}}`, `},"default/other":{"n":1.0}}`, 1)
	for _, code := range []int{0, 409} {
		simulate(t, func(t *testing.T, w *world) {
			w.pod("web", "u1", map[string]string{ovnKey: plain})
			w.fail(func(method string, n int) (int, http.Header, error) {
				if n == 0 {
					w.annotateLocked("web", ovnKey, theirs)
					return code, nil, nil
				}
				return 0, nil, nil
			})
			w.lag = map[string]*podT{"default/web": w.pods["default/web"]}
			mustPublish(t, w, publication("c1", "10.0.0.5/24"))
			if code == 0 {
				code = 422 // its test has failed
			}
			asked(t, w, fmt.Sprintf("PATCH %d, GET, PATCH", code))
			says(t, w, ovnKey, strings.Replace(leasedText("10.0.0.5/24"), `}}`, `},"default/other":{"n":1.0}}`, 1))
		})
	}
}

// What will not pass is not tried again at once, and the error says what to look at.
func TestRefusalsAreNotTriedAgain(t *testing.T) {
	always := func(c int) func(string, int) (int, http.Header, error) {
		return func(method string, _ int) (int, http.Header, error) {
			if method == http.MethodPatch {
				return c, nil, nil
			}
			return 0, nil, nil
		}
	}
	tests := []struct {
		name, want, requests string
		code                 int
	}{
		{"bad right", "needs the right to get and patch pods", "PATCH 403", 403},
		{"bad request", "as the test wants it", "PATCH 400", 400},
		{"bad policy", "an admission policy or the API server does not want the change", "PATCH 422, GET, PATCH 422", 422},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.pod("web", "u1", map[string]string{ovnKey: plain})
				w.fail(always(tt.code))
				began := time.Now()
				err := w.Publish(t.Context(), publication("c1", "10.0.0.5/24"))
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "default/web") {
					t.Errorf("got %v, want it to say %s", err, tt.want)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("took %s", took)
				}
				asked(t, w, tt.requests)
				// A right that is given later counts.
				time.Sleep(10 * time.Second)
				if n := strings.Count(w.since(), "PATCH"); n > 3 {
					t.Errorf("%d writes in ten seconds", n)
				}
				w.fail(nil)
				time.Sleep(3 * time.Minute)
				says(t, w, ovnKey, leasedText("10.0.0.5/24"))
			})
		})
	}
}

// An API server that comes back refuses all until it knows its roles.
func TestForbiddenRightAfterAnAbsence(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		w.fail(func(_ string, n int) (int, http.Header, error) {
			switch {
			case n < 2:
				return 0, nil, errRefusedConnection
			case n < 4:
				return 403, nil, nil
			}
			return 0, nil, nil
		})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		asked(t, w, "PATCH 0, GET 0, GET 403, GET 403, GET, PATCH")
	})
}

// The API is away for a minute: a call ends in its time and says so; what it could
// not write is there as soon as the API is.
func TestAPIAwayForAMinute(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		w.fail(func(string, int) (int, http.Header, error) { return 0, nil, errRefusedConnection })
		began := time.Now()
		err := within(t, 5*time.Second, func(ctx context.Context) error { return w.Publish(ctx, publication("c1", "10.0.0.5/24")) })
		if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "tried") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
		if n := w.value(t, metricPending, ""); n != 1 {
			t.Errorf("%v pending", n)
		}
		time.Sleep(55 * time.Second)
		if n := len(strings.Split(w.since(), ", ")); n > 40 {
			t.Errorf("%d requests in a minute", n)
		}
		w.fail(nil)
		time.Sleep(10 * time.Second)
		says(t, w, ovnKey, leasedText("10.0.0.5/24"))
		if n := w.value(t, metricPending, ""); n != 0 {
			t.Errorf("%v pending", n)
		}
		if log := w.log.String(); strings.Count(log, "cannot be written yet") != 1 || strings.Count(log, "after all") != 1 {
			t.Errorf("log:\n%s", log)
		}
	})
}

// A DEL that finds no API is made good later.
func TestWithdrawWhileTheAPIIsAway(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		w.fail(func(string, int) (int, http.Header, error) { return 0, nil, errRefusedConnection })
		if err := within(t, time.Second, func(ctx context.Context) error { return w.Withdraw(ctx, attachment("c1")) }); err == nil {
			t.Error("no error")
		}
		w.fail(nil)
		time.Sleep(time.Minute)
		says(t, w, ovnKey, plain)

		// After that it is nobody's business any longer.
		w.since()
		w.annotate("web", ovnKey, leasedText("10.0.0.9/24"))
		time.Sleep(time.Hour)
		asked(t, w, "")
	})
}

// The answer to a write is lost: it is not written again.
func TestLostAnswer(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		w.fail(func(method string, n int) (int, http.Header, error) {
			if n == 0 {
				w.annotateLocked("web", ovnKey, leasedText("10.0.0.5/24"))
				return 0, nil, errors.New("connection reset by peer")
			}
			return 0, nil, nil
		})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		asked(t, w, "PATCH 0, GET")
	})
}

// OVN-Kubernetes writes another entry of the pod and drops what it does not know: it
// is put back. So is an address that somebody else writes into our entry.
func TestK40PutBack(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		w.since()
		stripped := strings.Replace(leasedText("10.0.0.5/24"), `,"ipam_mode":"dhcp"`, ``, 1)
		w.annotate("web", ovnKey, strings.Replace(stripped, `}}`, `},"default/new":{}}`, 1))
		time.Sleep(2 * debounce)
		says(t, w, ovnKey, strings.Replace(leasedText("10.0.0.5/24"), `}}`, `},"default/new":{}}`, 1))
		asked(t, w, "PATCH")
		if n := w.value(t, metricPutBack, ""); n != 1 {
			t.Errorf("%v put back", n)
		}
		w.annotate("web", ovnKey, leasedText("10.0.0.9/24"))
		time.Sleep(4 * debounce)
		if got := w.annotation(t, "web", ovnKey); !strings.Contains(got, "10.0.0.5/24") {
			t.Errorf("got %s", got)
		}
		if n := w.value(t, metricPutBack, ""); n != 2 {
			t.Errorf("%v put back", n)
		}
		time.Sleep(time.Hour)
		asked(t, w, "PATCH, PATCH")
	})
}

// A writer that wants it otherwise and does not give in is answered more and more
// slowly, and people are told.
func TestFightIsSlow(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		w.since()
		stop := time.Now().Add(10 * time.Minute)
		changed := w.api.changed
		w.api.changed = func(old, pod *podT) {
			changed(old, pod)
			if time.Now().Before(stop) && strings.Contains(pod.Annotations[ovnKey], "ipam_mode") {
				w.annotate("web", ovnKey, strings.Replace(pod.Annotations[ovnKey], `,"ipam_mode":"dhcp"`, ``, 1))
			}
		}
		w.annotate("web", ovnKey, plain)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(w.since(), "PATCH"); n < stubborn || n > 20 {
			t.Errorf("%d writes in ten minutes", n)
		}
		if n := strings.Count(w.log.String(), "somebody else keeps changing"); n != 1 {
			t.Errorf("said %d times", n)
		}
		time.Sleep(2 * time.Minute)
		if got := w.annotation(t, "web", ovnKey); !strings.Contains(got, "ipam_mode") {
			t.Errorf("in the end: %s", got)
		}
	})
}

// An annotation that cannot be edited is an error at once, and is left as it is;
// once mended it gets its lease.
func TestBrokenAnnotationIsLeftAlone(t *testing.T) {
	for _, text := range []string{`ip=10.0.0.4`, `{"default/lan":[]}`, `{"default/lan":{},"default/lan":{}}`} {
		simulate(t, func(t *testing.T, w *world) {
			w.pod("web", "u1", map[string]string{ovnKey: text})
			began := time.Now()
			err := w.Publish(t.Context(), publication("c1", "10.0.0.5/24"))
			if err == nil || !strings.Contains(err.Error(), "annotation "+ovnKey) || time.Since(began) > 0 {
				t.Errorf("%s: after %s got %v", text, time.Since(began), err)
			}
			time.Sleep(5 * time.Minute)
			asked(t, w, "GET, GET, GET, GET, GET")
			says(t, w, ovnKey, text)
			w.annotate("web", ovnKey, plain)
			time.Sleep(2 * debounce)
			says(t, w, ovnKey, leasedText("10.0.0.5/24"))
		})
	}
}

// The cache has not seen the pod yet, or shows it as it was.
func TestStaleCache(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		w.hidden = true
		mustPublish(t, w, publication("c1", "10.0.0.5/24"))
		asked(t, w, "GET, PATCH")

		w.hidden = false
		w.lag = map[string]*podT{"default/web": w.pods["default/web"]}
		if err := w.Withdraw(t.Context(), attachment("c1")); err != nil {
			t.Fatal(err)
		}
		mustPublish(t, w, publication("c1", "10.0.0.6/24")) // on our own last answer
		asked(t, w, "PATCH, PATCH")
	})
}

// No pod is told: there is nothing to write into.
func TestWithoutAPod(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		p := publication("c1", "10.0.0.5/24")
		p.Pod = engine.Pod{}
		if err := errors.Join(w.Reset(t.Context(), p.Attachment, engine.Container), w.Publish(t.Context(), p), w.Withdraw(t.Context(), p.Attachment)); err != nil {
			t.Error(err)
		}
		w.Forget(p.Attachment)
		asked(t, w, "")
	})
}

// A runtime that tells no UID: the pod is known by its name.
func TestPodWithoutUID(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: plain})
		p := publication("c1", "10.0.0.5/24")
		p.Pod.UID = ""
		mustPublish(t, w, p)
		says(t, w, ovnKey, leasedText("10.0.0.5/24"))
		w.annotate("web", ovnKey, plain)
		time.Sleep(2 * debounce)
		says(t, w, ovnKey, leasedText("10.0.0.5/24"))
	})
}
