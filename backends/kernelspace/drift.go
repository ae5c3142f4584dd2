package kernelspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/proxy"
)

// pendingObject says why an object is not finished: it could not be written or removed, or something that it needs
// does not exist yet.
type pendingObject struct {
	err error
	// awaited are the addresses of endpoints that do not exist yet, and whether only one of a pod of this
	// node will do; the zero Addr stands for the endpoint that gets health checks.
	awaited map[netip.Addr]bool
	// at is when this was last found, since when the object has been pending.
	at, since time.Time
}

// due returns when to try again: after as long as the object has been pending.
func (p *pendingObject) due() time.Time {
	return p.at.Add(min(max(p.at.Sub(p.since), retryFirst), listInterval))
}

// pendingObjects are the objects that were found pending since the last list.
type pendingObjects struct {
	all map[key]pendingObject
	// since is since when objects have been pending, also objects that were pending before the last list.
	since map[key]time.Time
}

// errMissing marks an endpoint that does not exist yet.
var errMissing = errors.New("missing in HNS")

func newPendingObjects(before map[key]pendingObject) pendingObjects {
	p := pendingObjects{all: map[key]pendingObject{}, since: map[key]time.Time{}}
	for k, x := range before {
		p.since[k] = x.since
	}
	return p
}

// setPending records why an object is pending, or that it is not if there is no error.
func (s *shared) setPending(k key, p pendingObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.err == nil {
		delete(s.pending.all, k)
		return
	}
	p.at = time.Now()
	if _, known := s.pending.since[k]; !known {
		s.pending.since[k] = p.at
	}
	p.since = s.pending.since[k]
	s.pending.all[k] = p
}

// settle forgets since when an object was pending, unless it is pending again.
func (s *shared) settle(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.pending.all[k]; !is {
		delete(s.pending.since, k)
	}
}

// suspect records that the mirror may be wrong because of an error: a call failed, and so did reading what it left.
func (s *shared) suspect(err error) { s.setPending(key{kind: kindUnread}, pendingObject{err: err}) }

// isSuspect reports whether the mirror may be wrong.
func (p *pendingObjects) isSuspect() bool {
	_, is := p.all[key{kind: kindUnread}]
	return is
}

// failureLimit is how many objects an error names at most: users who create Services could
// otherwise fill the logs.
const failureLimit = 20

// join joins errors about one object each.
func join(errs []error) error {
	if more := len(errs) - failureLimit; more > 0 {
		errs = append(errs[:failureLimit:failureLimit], fmt.Errorf("%d more objects", more))
	}
	return errors.Join(errs...)
}

// failure returns the reasons as one error, nil if nothing is pending.
func (p *pendingObjects) failure() error {
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(p.all), func(a, b key) int { return cmp.Or(int(a.kind)-int(b.kind), compareKeys(a, b)) }) {
		errs = append(errs, fmt.Errorf("kernelspace: %v: %w", k, p.all[k].err))
	}
	return join(errs)
}

// onlyAwaits reports whether all pending objects wait for endpoints to appear.
func (p *pendingObjects) onlyAwaits() bool {
	for _, x := range p.all {
		if len(x.awaited) == 0 {
			return false
		}
	}
	return true
}

// hasAppeared reports whether an endpoint exists that something waits for.
func (p *pendingObjects) hasAppeared(m *mirror) bool {
	for _, x := range p.all {
		for a, onlyLocal := range x.awaited {
			_, found := m.find(a, onlyLocal)
			if found || !a.IsValid() && m.root != "" {
				return true
			}
		}
	}
	return false
}

// retryFirst is the first pause before a pending object is tried again. Later pauses are longer, up to listInterval.
const retryFirst = 500 * time.Millisecond

// listInterval is after what time everything is listed although nothing was noticed.
const listInterval = 5 * time.Minute

// drift is when HNS must be listed again.
type drift struct {
	// noticed is the greatest event that HNS has notified of, 0 if it has not.
	noticed hcn.Event
	// known says that the mirror has all that may differ, so that nothing must be read.
	known bool
	// at is when everything was listed.
	at time.Time
	// wake ends a wait.
	wake context.CancelFunc
}

// beginList begins anew before everything is listed: what HNS notifies of from now on may not be in the
// list. It returns the greatest event before, for note if the list fails.
func (s *shared) beginList() (noticed hcn.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	noticed, s.drift.noticed, s.drift.known = s.drift.noticed, 0, false
	return noticed
}

// listed begins anew after everything was listed, or only what the mirror has.
func (s *shared) listed(f facts, everything bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if everything {
		s.drift.at = time.Now()
	}
	s.facts, s.pending = f, newPendingObjects(s.pending.all)
}

// due returns when to list because of pending objects; the zero Time for never.
func (p *pendingObjects) due() (first time.Time) {
	for _, x := range p.all {
		if due := x.due(); first.IsZero() || due.Before(first) {
			first = due
		}
	}
	return first
}

// Drifted is Drifted of [proxy.Abilities]. It reads which endpoints exist if only they may have
// changed: then load balancers need not be listed. [backends.New] lets it overlap with no other call.
func (t *target) Drifted(ctx context.Context) bool {
	everything, isDue, is := t.mayDiffer()
	if everything || !is {
		return is
	}
	t.looked.endpoints = false
	err := t.lookForEndpoints(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.drift
	switch {
	case err != nil || t.pending.isSuspect():
		d.noticed = max(d.noticed, hcn.NetworksChanged) // list everything
		return true
	case !isDue && !d.known && !t.mirror.stale && !t.pending.hasAppeared(t.mirror):
		return false
	}
	d.known = true
	return true
}

// mayDiffer reports whether HNS may differ from what was written, whether everything must be listed
// then, and whether a pending object is due.
func (t *target) mayDiffer() (everything, isDue, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.drift
	isDue = t.isDue()
	everything = d.at.IsZero() || d.noticed > hcn.EndpointsChanged || time.Since(d.at) >= listInterval ||
		isDue && !t.pending.onlyAwaits() || t.pending.isSuspect()
	is = everything || t.hasDrifted()
	if !everything {
		d.noticed = 0
	}
	return everything, isDue, is
}

func (t *target) isDue() bool {
	due := t.pending.due()
	return !due.IsZero() && !time.Now().Before(due)
}

func (t *target) hasDrifted() bool { return t.drift.noticed > 0 || t.drift.known || t.isDue() }

// waitPause is the pause between attempts to wait for notifications.
const waitPause = 30 * time.Second

// WaitDrift is WaitDrift of [proxy.Abilities]: it waits for a notification of HNS, or until something
// that is pending is due again. While HNS cannot notify, it waits for the latter alone.
func (t *target) WaitDrift(ctx context.Context) error {
	for {
		wait, stop, drifted := t.beginWait(ctx)
		if drifted {
			stop()
			return nil
		}
		event, err := t.client.Wait(wait)
		ended := wait.Err() != nil
		if err != nil && !ended {
			t.waitFails(err)
			_ = pause.For(wait, waitPause) // what is due ends it
		}
		stop()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			t.waitFails(nil)
			t.note(event)
		}
	}
}

// waitFails records why no notification comes; nothing if HNS has none.
func (t *target) waitFails(err error) {
	if errors.Is(err, hcn.ErrUnsupported) {
		err = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waitFailed = err
}

// beginWait returns the context of a wait, which ends when something is due.
func (t *target) beginWait(ctx context.Context) (wait context.Context, stop context.CancelFunc, drifted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if due := t.pending.due(); due.IsZero() {
		wait, stop = context.WithCancel(ctx)
	} else {
		wait, stop = context.WithDeadline(ctx, due)
	}
	t.drift.wake = stop
	return wait, stop, t.hasDrifted()
}

// note records a notification.
func (s *shared) note(e hcn.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.noticed = max(s.drift.noticed, e)
}

// CheckNode is CheckNode of [proxy.Abilities]: it returns what could not be written, whether the
// state file can, and whether a family is not served.
func (t *target) CheckNode(s proxy.Snapshot) (all []*proxy.Problem) {
	problem := func(field string, err error) {
		p := &proxy.Problem{Kind: "Node", Field: field, Reason: proxy.NodeSetting, Err: err}
		if n := s.Node(); n != nil {
			p.Name = n.Name
		}
		all = append(all, p)
	}
	t.mu.Lock()
	err, waitFailed := t.pending.failure(), t.waitFailed
	var modifyFailed error
	if first := slices.SortedFunc(maps.Keys(t.notModified), compareKeys); len(first) > 0 {
		modifyFailed = t.notModified[first[0]]
	}
	r, isListed := t.renderer(), !t.drift.at.IsZero()
	t.mu.Unlock()
	if err := r.unserved(s); err != nil && isListed {
		problem("IP families", err)
	}
	if err != nil {
		problem("HNS", fmt.Errorf("%w; it is tried again", err))
	}
	if modifyFailed != nil {
		problem("HNS", fmt.Errorf("load balancers cannot be modified, and are made again instead: %w", modifyFailed))
	}
	if waitFailed != nil {
		problem("HNS", fmt.Errorf("waiting for notifications: %w: changes of networks and endpoints are noticed late", waitFailed))
	}
	if err := t.state.failure(); err != nil {
		problem("state file", fmt.Errorf("%w: after a restart, load balancers that no Service needs any more stay", err))
	}
	return all
}
