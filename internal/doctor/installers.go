package doctor

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dhcp-meta/dhcp-meta/internal/install"
)

// toldToWrap finds, in the pods of a node, installers of ours and the plugins before or
// in whose place they are told to put ours.
func toldToWrap(pods []corev1.Pod, installer func(args, environment []string) (install.Plan, error)) map[string]install.Mode {
	told := map[string]install.Mode{}
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			words := slices.Concat(c.Command, c.Args)
			at := slices.Index(words, "install")
			if at < 0 {
				continue
			}
			var environment []string
			for _, v := range c.Env {
				environment = append(environment, v.Name+"="+v.Value)
			}
			plan, err := installer(words[at+1:], environment)
			if err != nil { // not ours, or it does not run
				continue
			}
			for _, name := range plan.Wrap {
				told[name] = plan.Mode
			}
		}
	}
	return told
}
