package podannotation

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/kube/podnetworks"
)

// view is a pod as somebody saw it at some time.
type view struct {
	namespace, name string
	uid             string
	version         uint64 // of the object; 0 is older than any
	// annotated says that it has annotations at all.
	annotated bool
	// annotations are those that matter here.
	annotations map[string]string
}

func viewOf(pod *corev1.Pod) view {
	v := view{
		namespace: pod.Namespace, name: pod.Name, uid: string(pod.UID),
		annotated: len(pod.Annotations) > 0, annotations: make(map[string]string),
	}
	v.version, _ = strconv.ParseUint(pod.ResourceVersion, 10, 64)
	for _, key := range []string{podnetworks.OVNKey, podnetworks.OwnKey, podnetworks.NetworksKey} {
		if text, there := pod.Annotations[key]; there {
			v.annotations[key] = text
		}
	}
	return v
}
