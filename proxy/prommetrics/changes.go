package prommetrics

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// The kinds of objects that are timed.
const (
	serviceKind = iota
	sliceKind
	kinds
)

func kindName(kind int) string { return [...]string{"Service", "EndpointSlice"}[kind] }

// maxTriggers bounds the triggers of one Service in a family that wait for the dataplane.
const maxTriggers = 100

// maxChanges bounds the Services that wait for the dataplane, if it fails for long.
const maxChanges = 1 << 16

// changes are the changes of Services that a Runner has begun to apply and that are not in the
// kernel yet.
type changes map[types.NamespacedName]*change

// change is all changes of one Service since its last one that is in the kernel.
type change struct {
	// received is when the tracker first received one, by kind; zero for never.
	received [kinds]time.Time
	taken    time.Time // when the Runner began to apply it
	// triggers are the trigger times of EndpointSlices, by family.
	triggers [2][]time.Time
}

// take adds the changes between a snapshot and the one before it.
func (c changes) take(s proxy.Snapshot, now time.Time) {
	for h := range s.ChangeTimes() {
		x := c[h.Name]
		if x == nil && len(c) >= maxChanges {
			continue
		}
		if x == nil {
			x = &change{taken: now}
			c[h.Name] = x
		}
		for kind, at := range [kinds]time.Time{h.Service, h.EndpointSlice} {
			if x.received[kind].IsZero() {
				x.received[kind] = at
			}
		}
		for i, triggers := range [...][]time.Time{h.TriggersIPv4, h.TriggersIPv6} {
			room := maxTriggers - len(x.triggers[i])
			x.triggers[i] = append(x.triggers[i], triggers[:min(room, len(triggers))]...)
		}
	}
}

// finish calls done for the changes that are in the kernel now, and returns the others: those
// of the service ports that were refused.
func (c changes) finish(refused proxy.PortErrors, done func(*change)) changes {
	left := changes{}
	for port := range refused {
		if x := c[port.NamespacedName]; x != nil {
			left[port.NamespacedName] = x
		}
	}
	for name, x := range c {
		if left[name] == nil {
			done(x)
		}
	}
	return left
}
