package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The kind of the lease objects is looked for, and the policy that goes with it as far
// as the engine's own rights allow.
func TestLeaseObjects(t *testing.T) {
	const none = "system:serviceaccount:shop:default"
	for name, tt := range map[string]struct {
		list, create int // what the API server answers
		user         string
		pods         int
		want         []ID
		asked        bool // for a write
	}{
		"well":               {200, 403, account, 1, nil, true},
		"no kind":            {404, 404, account, 1, []ID{LeaseKindMissing}, false},
		"no kind, no pods":   {404, 404, account, 0, []ID{LeaseKindMissing}, false},
		"no policy":          {200, 201, account, 1, []ID{PolicyMissing}, true},
		"no right to list":   {403, 201, account, 1, nil, false},
		"another account":    {200, 201, none, 1, nil, false},
		"no pods":            {200, 201, account, 0, nil, false},
		"another schema":     {200, 422, account, 1, nil, true},
		"kind goes meantime": {200, 404, account, 1, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				code := tt.list
				if r.Method == http.MethodPost {
					asked, code = true, tt.create
					if r.URL.Query().Get("dryRun") != "All" || !strings.HasSuffix(r.URL.Path, "/namespaces/shop/dhcpleases") {
						t.Errorf("written: %s", r.URL)
					}
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(code)
				_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: int32(code), Message: "as it is"})
			}))
			defer server.Close()
			c, err := connect(&rest.Config{Host: server.URL})
			must(t, err)
			c.user = tt.user
			for range tt.pods {
				c.pods = append(c.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}})
			}
			finds(t, c.leaseObjects(t.Context()), tt.want...)
			if asked != tt.asked {
				t.Errorf("a write was tried: %v, want %v", asked, tt.asked)
			}
		})
	}
}
