package chaos

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dhcp-meta/dhcp-meta/tests/rig"
)

// pod is a sandbox with one interface on the network.
type pod struct {
	*rig.Sandbox
	call rig.Call
	// mac is known when the ADD has succeeded.
	mac string
}

// verbDone is the end of a verb that ran in the background: of an ADD, and of the
// DEL that a runtime sends after a failed one; or of a DEL.
type verbDone struct {
	pod      *pod
	add, del rig.Outcome
	// added says that the pod has its address, ended that it has been deleted.
	added, ended bool
	err          error
}

// newPod makes a sandbox whose end can be seen: the node's namespace knows it by a
// number, which the kernel takes back when the sandbox's namespace is no more.
func (s *storm) newPod(t *testing.T) *pod {
	p := &pod{Sandbox: rig.NewSandbox(t)}
	p.call = p.Call("net1", s.Macvlan(rig.Object{"timeout": "15s"}))
	s.Node.IP(t, "netns", "set", p.Name, "auto")
	return p
}

// most is how many verbs run at once.
const most = 6

// turnOver adds a pod or deletes one.
func (s *storm) turnOver(t *testing.T) func(*testing.T) {
	few, many := len(s.live) < s.target/2, len(s.live)+s.busy >= s.target
	switch {
	case s.busy >= most:
	case few, !many && s.rng.IntN(5) > 1:
		s.add(s.newPod(t))
	default:
		s.del(s.live[s.rng.IntN(len(s.live))])
	}
	return nil
}

// add runs ADD in the background, and DEL after a failed one, as a runtime does.
func (s *storm) add(p *pod) {
	s.busy++
	go func() {
		v := verbDone{pod: p}
		v.add, v.err = s.Node.CNI("ADD", p.call)
		if v.added = v.err == nil && v.add.Err == nil; !v.added && v.err == nil {
			v.del, v.err = s.Node.CNI("DEL", p.call)
			v.ended = true
		}
		s.doneC <- v
	}()
}

// del runs DEL in the background.
func (s *storm) del(p *pod) {
	s.busy++
	for i := range s.live {
		if s.live[i] == p {
			s.live = append(s.live[:i:i], s.live[i+1:]...)
			break
		}
	}
	go func() {
		v := verbDone{pod: p, ended: true}
		v.del, v.err = s.Node.CNI("DEL", p.call)
		s.doneC <- v
	}()
}

// done takes note of the end of a verb.
func (s *storm) done(t *testing.T, v verbDone) {
	s.busy--
	switch {
	case v.err != nil:
		t.Errorf("pod %s: %v", v.pod.Pod, v.err)
	case v.added:
		s.happened["ADD"]++
		v.pod.mac = v.pod.HardwareAddr(t, "net1").String()
		s.live = append(s.live, v.pod)
	case v.del.Err != nil:
		t.Errorf("DEL of pod %s: %v", v.pod.Pod, v.del.Err)
	case v.add.Err != nil:
		s.happened["ADD failed"]++
		t.Logf("ADD of pod %s: %v", v.pod.Pod, v.add.Err)
	default:
		s.happened["DEL"]++
	}
	if v.ended {
		if have := v.pod.Addresses(t, "net1"); have != nil {
			t.Errorf("pod %s carries %v after DEL", v.pod.Pod, have)
		}
		v.pod.Delete(t)
	}
}

// addAll brings the pods to their number.
func (s *storm) addAll(t *testing.T) {
	for len(s.live) < s.target && !t.Failed() {
		for s.busy < most && len(s.live)+s.busy < s.target {
			s.add(s.newPod(t))
		}
		s.done(t, <-s.doneC)
	}
}

// delAll deletes all pods.
func (s *storm) delAll(t *testing.T) {
	for len(s.live)+s.busy > 0 {
		for s.busy < most && len(s.live) > 0 {
			s.del(s.live[0])
		}
		s.done(t, <-s.doneC)
	}
}

// pinned are the namespaces of deleted pods that are still there: numbers that no
// name belongs to.
func (s *storm) pinned(t *testing.T) (ids []string) {
	for _, line := range strings.Split(s.Node.IP(t, "netns", "list-id"), "\n") {
		// ip complains beside the list of files in /run/netns that are no namespaces.
		if strings.HasPrefix(line, "nsid ") && !strings.Contains(line, "name:") {
			ids = append(ids, fmt.Sprintf("%q", line))
		}
	}
	return ids
}
