package kube

import (
	"context"
	"time"
)

// syncPoll is how often it is looked whether the caches are complete; the library
// has no event for it that also ends with a context.
const syncPoll = 50 * time.Millisecond

// awaitSync closes syncedC when all is known. Without the kind
// NetworkAttachmentDefinition the list on disk is left as it is: an API server
// that starts may say so for a moment. When the kind comes, the list follows.
func (c *Cluster) awaitSync(ctx context.Context) {
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	listed := false
	for {
		if !listed && c.nadCache.HasSynced() {
			c.list.changed()
			listed = true
		}
		if c.podCache.HasSynced() && (listed && c.list.isWritten() || c.nadSource.isUnknown()) {
			c.syncOnce.Do(func() {
				close(c.syncedC)
				c.metrics.synced.Set(1)
				c.log.Info("pods and networks of the cluster are known")
				c.watchers.tellAll()
			})
			if listed {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
