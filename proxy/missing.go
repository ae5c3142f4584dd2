package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/internal/pause"
)

// Missing names the input that the tracker still waits for, with a message for the log. Both
// are empty once everything has arrived that the tracker needs to serve all traffic.
func (t *ServiceChangeTracker) Missing() (input, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, log := t.options.NodeName, &t.changeLog
	switch {
	case !log.synced:
		message = fmt.Sprintf("Synced was not called; received: Services %d, EndpointSlices %d", log.received.Services, log.received.EndpointSlices)
		if name != "" {
			message += fmt.Sprintf(", Node %q %t", name, log.hasNode)
		}
		return "first objects", message
	case name == "" || len(t.node.Addresses) > 0:
		return "", ""
	case log.hasNode:
		return "Node", fmt.Sprintf("the Node %q has no address, so node ports have none; check its status.addresses", name)
	}
	return "Node", fmt.Sprintf("the Node %q was not found, so node ports have no addresses, and the zone is unknown; check the configured node name", name)
}

const (
	// missingPeriod is the time between two looks at what is missing. An input that is missing
	// for that long is logged, again after pauses that double, up to maxMissingPause.
	missingPeriod   = 5 * time.Second
	maxMissingPause = 10 * time.Minute
)

// LogMissing logs, until ctx ends, which input the tracker waits for, and since when: if an input
// is [ServiceChangeTracker.Missing] for five seconds, again after growing pauses, and when it has
// arrived. Run it beside the [Runner].
func (t *ServiceChangeTracker) LogMissing(ctx context.Context, log logr.Logger) {
	var input string
	var since, next time.Time
	for {
		now := time.Now()
		found, message := t.Missing()
		waited := now.Sub(since).Round(time.Second)
		if found != input {
			if input != "" && next.Sub(since) > missingPeriod { // It was logged.
				log.Info("no longer waiting", "for", input, "waited", waited.String())
			}
			input, since, next = found, now, now.Add(missingPeriod)
		}
		if input != "" && !now.Before(next) {
			log.Info("waiting", "for", input, "detail", message, "waited", waited.String())
			next = now.Add(min(waited+missingPeriod, maxMissingPause))
		}
		if pause.For(ctx, missingPeriod) != nil {
			return
		}
	}
}
