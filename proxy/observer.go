package proxy

import (
	"context"
	"time"
)

// Observer follows what a [Runner] does. Each function may be nil. The Runner calls them on
// its goroutine, one after the other, and waits until they return.
type Observer struct {
	// Begin is called when Run begins. Its error ends Run.
	Begin func(*Runner) error
	// Started is called before each Apply, with the fields that are known by then:
	// Snapshot, Full, Changed and Start.
	Started func(Sync)
	// Synced is called after each Apply.
	Synced func(Sync)
	// Verified is called, after Synced, when a resync found that the whole dataplane matches
	// the snapshot, and FlowCleaner has succeeded. The Runner does not call it if [Abilities].WaitDrift
	// noticed during the resync that another program changed the dataplane. It does not call it either
	// after two resyncs in a row that had to repair something: then another program undoes each repair.
	Verified func(Snapshot)
}

// Sync describes one Apply.
type Sync struct {
	// Snapshot is what Apply had to achieve.
	Snapshot Snapshot
	// Applied is what the dataplane is known to hold afterwards ([Snapshot.Achieved]). It
	// is the zero Snapshot if that is unknown.
	Applied Snapshot
	// Limits are the requests of Services that the dataplane honours only in part although
	// it serves their ports, for all of Applied and in the order of names, if the Backend
	// reports them ([Abilities].CheckLimits). A limit that does not change stays the same
	// Problem.
	Limits []*Problem
	// Full says that Apply started from the zero Snapshot.
	Full bool
	// Changed is the number of service ports that differ between the Snapshot that Apply
	// started from and Snapshot.
	Changed int
	// Operations is the number of kernel operations, if the Backend counts
	// them ([Abilities].Operations).
	Operations uint64
	// Start is when the sync began.
	Start time.Time
	// Duration is how long the sync took.
	Duration time.Duration
	// Err is the error of Apply, of the Runner's FlowCleaner, or both joined; nil for success.
	Err error
	// Refused are the service ports that could not be programmed, if Err has no other
	// cause; otherwise nil.
	Refused PortErrors
}

// achieved reports whether everything was done, except for single service ports.
func (s *Sync) achieved() bool { return s.Err == nil || s.Refused != nil }

// FlowCleaner removes entries of connection tracking that changes of the dataplane made
// stale. Calls do not overlap.
type FlowCleaner interface {
	// AddFrontends gets frontends that an earlier process has left in the dataplane
	// ([Abilities].FoundFrontends). The next RemoveStale also removes flows to them, unless applied has them.
	AddFrontends(found []*ServicePort)
	// RemoveStale removes the flows that became stale since its last success. The Runner calls it after
	// each Apply that changed the dataplane, also in part; applied is what the dataplane holds
	// now. If full is set, or at the first call, it checks all flows. Its error fails the Apply, and the
	// Runner retries it after some time. After [ErrDataplaneLost] the retry starts from the zero Snapshot,
	// with full set.
	RemoveStale(ctx context.Context, applied Snapshot, full bool) error
	// RetryDue reports whether RemoveStale has something to do although the dataplane has not changed. The
	// Runner calls it at each resync.
	RetryDue() bool
}
