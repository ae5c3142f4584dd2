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

// unfinished is what could not be done since everything was listed.
type unfinished struct {
	// all has the reasons, by object, and before those of the time before.
	all, before map[key]error
	// isNew says that something is unfinished that was not before.
	isNew bool
	// awaited are the addresses of endpoints that do not exist yet, and whether only one of a pod of this
	// node will do; the zero Addr stands for the endpoint that gets health checks.
	awaited map[netip.Addr]bool
}

// errMissing marks an endpoint that does not exist yet.
var errMissing = errors.New("missing in HNS")

func newUnfinished(before map[key]error) unfinished {
	return unfinished{all: map[key]error{}, before: before, awaited: map[netip.Addr]bool{}}
}

func (u *unfinished) add(k key, err error) {
	_, isOld := u.before[k]
	_, isKnown := u.all[k]
	u.isNew = u.isNew || !isOld && !isKnown
	u.all[k] = err
}

// failureLimit is how many objects an error names at most: users who create Services could
// otherwise fill the logs.
const failureLimit = 20

// failure returns the reasons as one error, nil if everything was done.
func (u *unfinished) failure() error {
	var errs []error
	for i, k := range slices.SortedFunc(maps.Keys(u.all), func(a, b key) int { return cmp.Or(int(a.kind)-int(b.kind), compareKeys(a, b)) }) {
		if i == failureLimit {
			errs = append(errs, fmt.Errorf("kernelspace: %d more objects", len(u.all)-i))
			break
		}
		errs = append(errs, fmt.Errorf("kernelspace: %v: %w", k, u.all[k]))
	}
	return errors.Join(errs...)
}

// onlyAwaits reports whether all that is unfinished waits for endpoints to appear, or for a pause to end.
func (u *unfinished) onlyAwaits() bool {
	for _, err := range u.all {
		if !errors.Is(err, errMissing) && !errors.Is(err, errPaused) {
			return false
		}
	}
	return true
}

// hasAppeared reports whether an endpoint exists that something waits for.
func (u *unfinished) hasAppeared(m *mirror) bool {
	for a, onlyLocal := range u.awaited {
		_, found := m.find(a, onlyLocal)
		if found || !a.IsValid() && m.root != "" {
			return true
		}
	}
	return false
}

// retryFirst: what is unfinished is tried again after this time, which doubles while something stays
// unfinished, up to the interval of listing.
const retryFirst = 500 * time.Millisecond

// drift is when HNS must be listed again.
type drift struct {
	// noticed is the greatest event that HNS has notified of, 0 if it has not; reconnected says that HNS
	// had ended.
	noticed     hcn.Event
	reconnected bool
	// known says that of all that may differ the mirror has it, so that nothing must be read.
	known bool
	// at is when everything was listed; since when something has been unfinished; retries how often
	// in a row something was when everything was listed.
	at, since time.Time
	retries   int
	// wake ends a wait.
	wake context.CancelFunc
}

// wakeUp has a wait notice that something is to be tried again. What is new is not delayed by what
// has failed for long.
func (d *drift) wakeUp(isNew bool) {
	if isNew {
		d.retries = 0
	}
	if isNew || d.since.IsZero() {
		d.since = time.Now()
	}
	if d.wake != nil {
		d.wake()
	}
}

// beginList begins anew before everything is listed: what HNS notifies of from now on may not be in the
// list. It returns whether something was noticed before, for listFailed.
func (s *shared) beginList() (noticed hcn.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	noticed, s.drift.noticed, s.drift.known = s.drift.noticed, 0, false
	return noticed
}

// hasReconnected reports, once, whether HNS has ended since the last list: it may be another version now.
func (s *shared) hasReconnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.drift.reconnected
	if s.drift.reconnected = false; was {
		s.modifyFailed = nil
	}
	return was
}

func (s *shared) listFailed(noticed hcn.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.noticed = max(s.drift.noticed, noticed)
}

// listed begins anew after everything was listed.
func (s *shared) listed(r *renderer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.drift
	if len(s.unfinished.all) > 0 {
		d.retries++
	} else {
		d.retries = 0
	}
	d.since, d.at = time.Time{}, time.Now()
	s.renderer, s.unfinished = r, newUnfinished(s.unfinished.all)
}

// listedAgain begins anew after what the mirror has was listed.
func (s *shared) listedAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.since = time.Time{}
	s.unfinished = newUnfinished(s.unfinished.all)
}

// due returns when to list because of what is unfinished; the zero Time for never.
func (t *target) due() time.Time {
	if t.drift.since.IsZero() || t.drift.at.IsZero() {
		return time.Time{}
	}
	return t.drift.since.Add(min(retryFirst<<min(t.drift.retries, 20), max(t.options.ListInterval, retryFirst)))
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
	case err != nil || t.mirror.suspect:
		d.noticed = max(d.noticed, hcn.NetworksChanged) // list everything
		return true
	case isDue:
		d.retries++
	case !d.known && !t.mirror.stale && !t.unfinished.hasAppeared(t.mirror):
		return false
	}
	d.known = true
	return true
}

// mayDiffer reports whether HNS may differ from what was written, whether everything must be listed
// then, and whether something unfinished is due.
func (t *target) mayDiffer() (everything, isDue, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.drift
	isDue = t.isDue()
	everything = d.at.IsZero() || d.noticed > hcn.EndpointsChanged || time.Since(d.at) >= t.options.ListInterval ||
		isDue && !t.unfinished.onlyAwaits() || t.mirror.suspect
	is = everything || t.hasDrifted()
	if !everything {
		d.noticed = 0
	}
	return everything, isDue, is
}

func (t *target) isDue() bool {
	due := t.due()
	return !due.IsZero() && !time.Now().Before(due)
}

func (t *target) hasDrifted() bool { return t.drift.noticed > 0 || t.drift.known || t.isDue() }

// waitPause is the pause between attempts to wait for notifications.
const waitPause = 30 * time.Second

// WaitDrift is WaitDrift of [proxy.Abilities]: it waits for a notification of HNS, or until something
// that is unfinished is due again. While HNS cannot notify, it waits for the latter alone.
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
	if due := t.due(); due.IsZero() {
		wait, stop = context.WithCancel(ctx)
	} else {
		wait, stop = context.WithDeadline(ctx, due)
	}
	t.drift.wake = stop
	return wait, stop, t.hasDrifted()
}

// note records a notification.
func (t *target) note(e hcn.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drift.noticed = max(t.drift.noticed, e)
	t.drift.reconnected = t.drift.reconnected || e == hcn.Disconnected
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
	err, modifyFailed, waitFailed := t.unfinished.failure(), t.modifyFailed, t.waitFailed
	renderer, isListed := t.renderer, !t.drift.at.IsZero()
	t.mu.Unlock()
	if err := renderer.unserved(s); err != nil && isListed {
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
