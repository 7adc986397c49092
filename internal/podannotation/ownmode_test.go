package podannotation

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// In its own DHCP mode OVN-Kubernetes makes the entry, without an address before it asks
// for one and with it afterwards, and waits for the first in its cache: neither is
// written or put back by us. What becomes of the lease later is, once each, and the mode
// is always there.
func TestK80EntryThatOVNKubernetesKeeps(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		bare := strings.Replace(plain, `"role":"secondary"`, `"role":"secondary","ipam_mode":"dhcp"`, 1)
		text := func(addr string) string {
			return strings.Replace(plain, `"ip_addresses":null,"mac_address":"0a:58:aa:bb:cc:01","role":"secondary"`,
				`"ip_addresses":["`+addr+`"],"mac_address":"0a:58:aa:bb:cc:01","role":"secondary","ipam_mode":"dhcp","gateway_ips":["10.0.0.1"]`, 1)
		}
		w.pod("web", "u1", map[string]string{ovnKey: bare})
		p := publication("c1", "10.0.0.5/24")
		p.IPAM, p.ByCaller = true, true
		mustPublish(t, w, p)
		time.Sleep(time.Minute)
		asked(t, w, "")
		for _, theirs := range []string{text("10.0.0.5/24"), bare, text("10.0.0.5/24")} {
			w.pod("web", "u1", map[string]string{ovnKey: theirs})
			time.Sleep(time.Minute)
			asked(t, w, "")
			says(t, w, ovnKey, theirs)
		}

		p = publication("c1", "10.0.0.6/24")
		p.IPAM = true
		mustPublish(t, w, p)
		says(t, w, ovnKey, text("10.0.0.6/24"))
		asked(t, w, "PATCH, PATCH") // the old address goes in a write of its own
		w.pod("web", "u1", map[string]string{ovnKey: bare})
		time.Sleep(time.Minute)
		asked(t, w, "")
		mustPublish(t, w, p) // as after a restart
		says(t, w, ovnKey, text("10.0.0.6/24"))
		asked(t, w, "PATCH")

		if err := w.Withdraw(t.Context(), p.Attachment); err != nil {
			t.Fatal(err)
		}
		says(t, w, ovnKey, bare)
		asked(t, w, "PATCH")
	})
}

// The write of a change that fails is made up for.
func TestChangeInAnEntryThatOVNKubernetesKeeps(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pod("web", "u1", map[string]string{ovnKey: leasedText("10.0.0.5/24")})
		p := publication("c1", "10.0.0.5/24")
		p.IPAM, p.ByCaller = true, true
		mustPublish(t, w, p)
		w.fail(func(string, int) (int, http.Header, error) { return 0, nil, errRefusedConnection })
		if err := within(t, time.Second, func(ctx context.Context) error { return w.Withdraw(ctx, p.Attachment) }); err == nil {
			t.Error("Withdraw succeeded without an API")
		}
		w.fail(nil)
		time.Sleep(time.Minute)
		if got := w.annotation(t, "web", ovnKey); strings.Contains(got, "10.0.0.5") {
			t.Errorf("the address is there still: %s", got)
		}
	})
}
