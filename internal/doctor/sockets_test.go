package doctor

import (
	"errors"
	"strings"
	"testing"
)

// The daemon's socket may be where the engine's container cannot see it.
func TestHiddenDHCPSocket(t *testing.T) {
	const socket = "/run/cni/dhcp.sock"
	var e examination
	finds(t, e.judgeHiddenSocket(socket, nil, nil))
	finds(t, e.judgeHiddenSocket(socket, []string{"/run/other.sock"}, []string{"a/b"}), DHCPSocketMissing)
	finds(t, e.judgeHiddenSocket(socket, []string{"/run/other.sock", "/host/run/cni/dhcp.sock"}, []string{"a/b"}))
}

// Who asks the daemon of the dhcp plugin is served by a drop-in, or rewritten. A mark
// changes nothing there, and a variable alone ends an engine that is a pod.
func TestNobodyServesTheDHCPPlugin(t *testing.T) {
	const asks = head + `"type":"macvlan","ipam":{"type":"dhcp"}`
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		pod    bool
		says   []string // empty: nothing is found
		no     string
	}{
		"a pod":          {asks + `}`, nil, true, []string{"overlays/drop-in", "mode=drop-in", `"type": "dhcp-meta"`, "delegate"}, "DHCP_ENGINE_DHCP_SOCKET"},
		"no pod":         {asks + `}`, nil, false, []string{"DHCP_ENGINE_DHCP_SOCKET=/run/cni/dhcp.sock", `"type": "dhcp-meta"`}, "overlays"},
		"marked":         {asks + `}`, marked, true, []string{"overlays/drop-in"}, "mark"},
		"marked, listed": {head + `"plugins":[{"type":"macvlan","ipam":{"type":"dhcp"}}]}`, marked, true, []string{"overlays/drop-in"}, "mark"},
		"wrapped":        {ours + `"delegate":{"type":"macvlan","ipam":{"type":"dhcp"}}}`, nil, true, nil, ""},
		"interposed":     {asks + `,"dhcp":{}}`, nil, true, nil, ""}, // where dhcp-meta must be found is told of
	} {
		t.Run(name, func(t *testing.T) {
			d, e := examined(nad("n", tt.config, tt.marks))
			e.cfg.InPod = tt.pod
			found := e.judgeHiddenSocket("/run/cni/dhcp.sock", nil, e.asking())
			if len(tt.says) == 0 {
				finds(t, found)
				return
			}
			finds(t, found, DHCPSocketMissing)
			finds(t, e.judgeNamed(d.name), DiscoverUnmarked)
			for _, f := range append(found, e.judgeNamed(d.name)...) {
				if !contains(f.Do, tt.says...) || strings.Contains(f.Do, tt.no) {
					t.Errorf("want it to say %q and not %q: %+v", tt.says, tt.no, f)
				}
			}
		})
	}
}

func TestDHCPSocket(t *testing.T) {
	refused := errors.New("connection refused")
	for name, tt := range map[string]struct {
		ours   bool
		err    error
		engine bool
		asking []string
		want   map[ID]Level
	}{
		"ours":                   {true, nil, true, nil, map[ID]Level{}},
		"ours, and nobody":       {true, refused, false, nil, map[ID]Level{DHCPSocketMissing: Error}},
		"ours, and another":      {true, nil, false, nil, map[ID]Level{DHCPSocketForeign: Error}},
		"another's":              {false, nil, false, []string{"a/b"}, map[ID]Level{DHCPDaemon: Note}},
		"nobody, nobody asks":    {false, refused, false, nil, map[ID]Level{}},
		"nobody, and one is due": {false, refused, false, []string{"a/b"}, map[ID]Level{DHCPSocketMissing: Warning}},
	} {
		t.Run(name, func(t *testing.T) {
			var e examination
			found := e.judgeDHCPSocket("/s", tt.ours, tt.err, tt.engine, tt.asking)
			got := levels(found)
			if len(got) != len(tt.want) {
				t.Fatalf("found %+v, want %v", found, tt.want)
			}
			for id, level := range tt.want {
				if got[id] != level {
					t.Errorf("found %+v, want %v", found, tt.want)
				}
			}
		})
	}
}
