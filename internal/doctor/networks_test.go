package doctor

import (
	"slices"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Configurations, in part.
const (
	head     = `{"cniVersion":"1.0.0","name":"n",`
	ours     = head + `"type":"dhcp-meta",`
	macv     = `"delegate":{"type":"macvlan"}`
	localnet = head + `"type":"ovn-k8s-cni-overlay","topology":"localnet"`
)

var marked = map[string]string{"dhcp-meta.io/ipam": "dhcp"}

func nad(name, config string, marks map[string]string) nadv1.NetworkAttachmentDefinition {
	return nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: marks},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config}}
}

// examined has the definition of a network, and others beside it.
func examined(nads ...nadv1.NetworkAttachmentDefinition) (definition, examination) {
	all := defineAll(nads)
	return all[0], examination{cluster: &cluster{networks: all}}
}

// A network is held against what an ADD on it does, in all forms.
func TestNetworks(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		ours   bool
		want   Level // of network-wrong; empty: well
	}{
		"wrapping":                     {ours + macv + `}`, nil, true, ""},
		"no name":                      {`{"cniVersion":"1.0.0","type":"dhcp-meta",` + macv + `}`, nil, true, ""},
		"in a file":                    {"", nil, false, ""},
		"behind another":               {head + `"plugins":[{"type":"macvlan"},{"type":"dhcp-meta"}]}`, nil, true, ""},
		"before another":               {head + `"plugins":[{"type":"dhcp-meta"},{"type":"tuning"}]}`, nil, true, Error},
		"nothing to wrap":              {ours + `"dhcp":{}}`, nil, true, Error},
		"wraps a name":                 {ours + `"delegate":"macvlan"}`, nil, true, Error},
		"wraps no list":                {ours + `"plugins":{}}`, nil, true, Error},
		"dhcp is a word":               {ours + macv + `,"dhcp":"always"}`, nil, true, Error},
		"dhcp is a list":               {ours + macv + `,"dhcp":[]}`, nil, true, Error},
		"dhcp is a word inside":        {ours + `"delegate":{"type":"macvlan","dhcp":true}}`, nil, true, Error},
		"dhcp is a word in a list":     {head + `"plugins":[{"type":"macvlan"},{"type":"dhcp-meta","dhcp":1}]}`, nil, true, Error},
		"another's dhcp is a word":     {localnet + `,"netAttachDefName":"shop/n","dhcp":"always"}`, nil, false, Warning},
		"another's dhcp is null":       {localnet + `,"netAttachDefName":"shop/n","dhcp":null}`, nil, false, ""},
		"marked, and dhcp is a word":   {localnet + `,"netAttachDefName":"shop/n","dhcp":"always"}`, marked, true, Error},
		"old version":                  {`{"cniVersion":"0.2.0","name":"n","type":"dhcp-meta",` + macv + `}`, nil, true, Error},
		"no version":                   {`{"name":"n","type":"dhcp-meta",` + macv + `}`, nil, true, Error},
		"old version of a list":        {`{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"macvlan"},{"type":"dhcp-meta"}]}`, nil, true, Error},
		"old version of another's":     {`{"cniVersion":"0.2.0","name":"n","type":"macvlan"}`, nil, false, ""},
		"cut short":                    {ours + `"delegate":`, nil, true, Error},
		"cut short, marked":            {`{"type":`, marked, true, Error},
		"cut short, another's":         {`{"type":"macvlan"`, nil, false, ""},
		"no type":                      {head + macv + `,"dhcp":{}}`, nil, true, Error},
		"empty list":                   {head + `"plugins":[]}`, marked, true, Error},
		"names itself":                 {ours + `"netAttachDefName":"shop/n",` + macv + `}`, nil, true, ""},
		"names none there is":          {ours + `"netAttachDefName":"shop/gone",` + macv + `}`, nil, true, Error},
		"names another":                {ours + `"netAttachDefName":"shop/other",` + macv + `}`, nil, true, Warning},
		"names another inside":         {ours + `"delegate":{"type":"macvlan","netAttachDefName":"shop/other"}}`, nil, true, Warning},
		"names another that is wrong":  {ours + `"netAttachDefName":"shop/bad",` + macv + `}`, nil, true, Error},
		"no namespace":                 {ours + `"netAttachDefName":"n",` + macv + `}`, nil, true, Error},
		"marked":                       {localnet + `,"netAttachDefName":"shop/n"}`, marked, true, ""},
		"marked, no namespace":         {localnet + `,"netAttachDefName":"n"}`, marked, true, Error},
		"marked, not told":             {head + `"type":"bridge"}`, marked, true, Error},
		"marked, told of another":      {head + `"type":"bridge","netAttachDefName":"shop/other"}`, marked, true, Error},
		"marked, told of a marked one": {head + `"type":"bridge","netAttachDefName":"shop/marked"}`, marked, true, Warning},
		"told of a marked one":         {head + `"type":"bridge","netAttachDefName":"shop/marked"}`, nil, true, Warning},
		"told of one that is not":      {head + `"type":"bridge","netAttachDefName":"shop/other"}`, nil, false, ""},
		"an object too deep":           {head + `"type":"bridge","delegate":{"type":"macvlan","dhcp":{}}}`, nil, true, Warning},
		"marked, told":                 {head + `"type":"bridge","netAttachDefName":"shop/n"}`, marked, true, ""},
		"marked, asks itself":          {head + `"type":"bridge","ipam":{"type":"dhcp"}}`, marked, true, ""},
		"an object, names none":        {head + `"type":"bridge","dhcp":{}}`, nil, true, ""},
		"an object, names none there":  {head + `"type":"bridge","dhcp":{},"netAttachDefName":"shop/gone"}`, nil, true, Error},
	} {
		t.Run(name, func(t *testing.T) {
			d, e := examined(nad("n", tt.config, tt.marks), nad("other", ours+macv+"}", nil), nad("marked", localnet+`,"netAttachDefName":"shop/marked"}`, marked),
				nad("bad", ours+macv+"}", map[string]string{"dhcp-meta.io/ipam": "x"}))
			if d.ours != tt.ours {
				t.Errorf("ours is %v: %+v", d.ours, d)
			}
			found := e.judgeADD(d)
			if !d.ours {
				found = judgeMisread(d)
			}
			if tt.want == "" {
				finds(t, found)
				return
			}
			finds(t, found, NetworkWrong)
			if got := levels(found)[NetworkWrong]; got != tt.want {
				t.Errorf("level %s, want %s: %+v", got, tt.want, found)
			}
		})
	}
}

// Where a plugin is not told of a mark, the first way to mend it is to wrap it, which
// OVN-Kubernetes' own cannot be.
func TestSimplestWay(t *testing.T) {
	const delegate, behind = `write "type": "dhcp-meta", with bridge in "delegate"`, `put {"type": "dhcp-meta"} behind bridge`
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		first  string
		says   []string
	}{
		"marked":             {head + `"type":"bridge"}`, marked, delegate, []string{"netAttachDefName", "stand before bridge"}},
		"marked, a list":     {head + `"plugins":[{"type":"bridge"},{"type":"tuning"}]}`, marked, behind, []string{"netAttachDefName"}},
		"marked, OVN":        {localnet + `,"netAttachDefName":"shop/other"}`, marked, `set "netAttachDefName"`, nil},
		"dhcp is a word":     {head + `"type":"bridge","dhcp":"always"}`, nil, "if DHCP by us is meant, " + delegate, []string{`"dhcp": {}`, "stand before bridge"}},
		"dhcp is a word too": {localnet + `,"dhcp":"always"}`, nil, `if DHCP by us is meant, write "dhcp": {}`, nil},
		"too deep":           {head + `"type":"bridge","delegate":{"type":"macvlan","dhcp":{}}}`, nil, "unless that one calls another plugin with what it has, " + delegate, []string{`"dhcp": {}`}},
	} {
		t.Run(name, func(t *testing.T) {
			d, e := examined(nad("n", tt.config, tt.marks), nad("other", ours+macv+"}", nil))
			found := append(e.judgeADD(d), judgeMisread(d)...)
			finds(t, found, NetworkWrong)
			if !strings.HasPrefix(found[0].Do, tt.first) || !contains(found[0].Do, tt.says...) {
				t.Errorf("want it to begin with %q and to say %q: %s", tt.first, tt.says, found[0].Do)
			}
		})
	}
	for name, config := range map[string]string{delegate: head + `"type":"bridge"}`, "mark it by": localnet + `}`} {
		d, e := examined(nad("n", config, nil))
		if found := e.judgeNamed(d.name); len(found) != 1 || !strings.HasPrefix(found[0].Do, "if it shall be, "+name) {
			t.Errorf("want %q: %+v", name, found)
		}
	}
}

// What an ADD is said to fail with is what it fails with.
func TestWhatAnADDFailsWith(t *testing.T) {
	const named = ours + `"netAttachDefName":"shop/other",` + macv
	other := func(config string, marks map[string]string) []nadv1.NetworkAttachmentDefinition {
		return []nadv1.NetworkAttachmentDefinition{nad("other", config, marks)}
	}
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		others []nadv1.NetworkAttachmentDefinition
		level  Level
		what   string   // what is said, in part
		how    []string // how it is known, in part
	}{
		"unknown key":               {ours + macv + `,"dhcp":{"x":1}}`, nil, nil, Error, "with code 7", []string{"dhcp.x"}},
		"unknown key, another's":    {head + `"type":"macvlan","dhcp":{"x":1}}`, nil, nil, Error, "with code 7", []string{"dhcp.x"}},
		"unknown key of a list":     {head + `"plugins":[{"type":"macvlan"},{"type":"dhcp-meta","dhcp":{"x":1}}]}`, nil, nil, Error, "with code 7", []string{"dhcp.x"}},
		"unknown key of the mark":   {localnet + `,"netAttachDefName":"shop/n"}`, map[string]string{"dhcp-meta.io/ipam": "dhcp", "dhcp-meta.io/config": `{"x":1}`}, nil, Error, "with code 7", []string{"dhcp.x"}},
		"misplaced key":             {ours + `"hostname":"x",` + macv + `}`, nil, nil, Error, "with code 7", []string{"hostname"}},
		"wrong mark":                {head + `"type":"macvlan","netAttachDefName":"shop/n"}`, map[string]string{"dhcp-meta.io/ipam": "x"}, nil, Error, "with code 7", []string{"dhcp-meta.io/ipam"}},
		"call and mark":             {ours + `"dhcp":{"x":1},` + macv + `}`, map[string]string{"dhcp-meta.io/ipam": "y"}, nil, Error, "with code 7", []string{"dhcp.x", "dhcp-meta.io/ipam"}},
		"old version":               {`{"cniVersion":"0.3.0","name":"n","type":"dhcp-meta",` + macv + `}`, nil, nil, Error, "with code 1", []string{"0.3.0"}},
		"old version comes first":   {`{"cniVersion":"0.2.0","name":"n","type":"dhcp-meta",` + macv + `}`, map[string]string{"dhcp-meta.io/ipam": "x"}, nil, Error, "with code 1", []string{"0.2.0", "dhcp-meta.io/ipam"}},
		"marked, old version":       {`{"cniVersion":"0.2.0","name":"n","type":"bridge","netAttachDefName":"shop/n"}`, marked, nil, Error, "with code 1", []string{"0.2.0"}},
		"marked, bad name":          {`{"cniVersion":"1.0.0","name":"n/x","type":"bridge","netAttachDefName":"shop/n"}`, marked, nil, Error, "with code 7", []string{"n/x"}},
		"marked wrongly, not told":  {head + `"type":"bridge"}`, map[string]string{"dhcp-meta.io/ipam": "x"}, nil, Error, "is not told", []string{"netAttachDefName", "dhcp-meta.io/ipam"}},
		"marked wrongly, and asks":  {head + `"type":"bridge","ipam":{"type":"dhcp"}}`, map[string]string{"dhcp-meta.io/ipam": "x"}, nil, Error, "with code 7", []string{"dhcp-meta.io/ipam"}},
		"marked wrongly, in a file": {"", map[string]string{"dhcp-meta.io/ipam": "x"}, nil, Error, "with code 7", []string{"dhcp-meta.io/ipam"}},
		"too deep":                  {head + `"type":"bridge","delegate":{"type":"macvlan","dhcp":{}}}`, nil, nil, Warning, "its plugin's affair", []string{"deeper"}},
		"names none there is":       {named + `}`, nil, nil, Error, "with code 7", []string{"shop/other", "no such"}},
		"names one marked wrongly":  {named + `}`, nil, other(ours+macv+`}`, map[string]string{"dhcp-meta.io/ipam": "x"}), Error, "with code 7", []string{"of which", "dhcp-meta.io/ipam"}},
		"names one cut short":       {named + `}`, nil, other(`{"type":`, nil), Error, "with code 7", []string{"of which", "spec.config"}},
		"settings here and there":   {named + `,"dhcp":{"timeout":"30s"}}`, nil, other(ours+macv+`}`, map[string]string{"dhcp-meta.io/config": `{"timeout":"60s"}`}), Error, "with code 7", []string{"only one of them"}},
		"names one called wrongly":  {named + `}`, nil, other(ours+`"hostname":"x",`+macv+`}`, nil), Warning, "annotations of another one", nil},
		"names one of old":          {named + `}`, nil, other(`{"cniVersion":"0.2.0","name":"n","type":"dhcp-meta",`+macv+`}`, nil), Warning, "annotations of another one", nil},
		"names one without plugin":  {named + `}`, nil, other(ours+`"dhcp":{}}`, nil), Warning, "annotations of another one", nil},
		"names one of another key":  {named + `}`, nil, other(ours+macv+`,"dhcp":{"x":1}}`, nil), Warning, "annotations of another one", nil},
		"marked wrongly, and names": {named + `}`, map[string]string{"dhcp-meta.io/ipam": "x"}, other(ours+macv+`}`, nil), Warning, "annotations of another one", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, e := examined(append([]nadv1.NetworkAttachmentDefinition{nad("n", tt.config, tt.marks)}, tt.others...)...)
			found := e.judgeADD(d)
			finds(t, found, NetworkWrong)
			if f := found[0]; f.Level != tt.level || !strings.Contains(f.What, tt.what) {
				t.Errorf("want %s, %q: %+v", tt.level, tt.what, f)
			}
			for _, how := range tt.how {
				if strings.Count(found[0].How, how) != 1 {
					t.Errorf("%q is not told once: %+v", how, found[0])
				}
			}
		})
	}
}

// dhcp-meta must stand before the plugins whose calls are ours, and before no other.
func TestInterposed(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		marks  map[string]string
		want   []string
	}{
		"wrapping":                  {ours + macv + `}`, nil, nil},
		"behind another":            {head + `"plugins":[{"type":"macvlan","dhcp":{}},{"type":"dhcp-meta"}]}`, nil, nil},
		"another's":                 {head + `"type":"macvlan"}`, nil, nil},
		"an object":                 {head + `"type":"macvlan","dhcp":{}}`, nil, []string{"macvlan"}},
		"an object in a list":       {head + `"plugins":[{"type":"macvlan","dhcp":{}},{"type":"tuning"}]}`, nil, []string{"macvlan"}},
		"the second of a list":      {head + `"plugins":[{"type":"macvlan"},{"type":"tuning","dhcp":{}}]}`, nil, []string{"tuning"}},
		"a name, and no mark":       {head + `"plugins":[{"type":"macvlan","dhcp":{}},{"type":"tuning","netAttachDefName":"shop/n"}]}`, nil, []string{"macvlan"}},
		"marked":                    {localnet + `,"netAttachDefName":"shop/n"}`, marked, []string{ovnType}},
		"marked, in a list":         {head + `"plugins":[{"type":"bridge","netAttachDefName":"shop/n"},{"type":"tuning"}]}`, marked, []string{"bridge"}},
		"marked, wraps by itself":   {head + `"type":"flannel","netAttachDefName":"shop/n","delegate":{"type":"bridge"}}`, marked, []string{"flannel"}},
		"marked, not told":          {head + `"type":"bridge"}`, marked, []string{"bridge"}},
		"marked, list not told":     {head + `"plugins":[{"type":"bridge"},{"type":"tuning"}]}`, marked, []string{"bridge"}},
		"marked, asks by itself":    {head + `"type":"bridge","ipam":{"type":"dhcp"}}`, marked, nil},
		"marked, told, old version": {`{"cniVersion":"0.2.0","name":"n","type":"bridge","netAttachDefName":"shop/n"}`, marked, []string{"bridge"}},
		"cut short":                 {`{"type":"macvlan","dhcp":{}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if d, _ := examined(nad("n", tt.config, tt.marks)); !slices.Equal(d.interposed, tt.want) {
				t.Errorf("%v, want %v: %+v", d.interposed, tt.want, d)
			}
		})
	}
}
