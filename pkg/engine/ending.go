package engine

import "errors"

// errEnding ends an ADD for a pod that needs it no longer.
var errEnding = errors.New("canceled: the pod is being deleted")

// ending tells whether a pod is being deleted.
func (e *Engine) ending(pod Pod) bool {
	return e.cfg.Cluster != nil && pod.Name != "" && e.cfg.Cluster.Ending(pod)
}

// giveUp ends the ADDs that wait for an address for a pod that is being deleted: the
// runtime ends the pod only after them. What has its address keeps it until its DEL,
// for a pod has time to end.
func (e *Engine) giveUp(pod Pod) {
	for _, s := range e.all() {
		if named(s.att.Pod) != named(pod) {
			continue
		}
		if phase := s.look().phase; phase == "" || phase == Claimed {
			e.turns.interrupt(s.att.AttachmentID, errEnding)
		}
	}
}
