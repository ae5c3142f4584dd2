package prommetrics

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// started records that the runner begins to apply a snapshot, for the first time or again.
func (m *Metrics) started(s proxy.Sync) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Snapshot.Generation() == m.taken.Generation() {
		return
	}
	m.taken = s.Snapshot
	m.changes.take(s.Snapshot, s.Start)
	setTime(m.kube.lastQueued, s.Start)
}

// synced records the result of an Apply.
func (m *Metrics) synced(s proxy.Sync) {
	m.mu.Lock()
	defer m.mu.Unlock()
	isFailure := s.Err != nil && s.Refused == nil
	m.countSync(s)
	m.kube.observe(s)
	m.follow(s, isFailure)
	if isFailure {
		return
	}
	end := s.Start.Add(s.Duration)
	m.own.unprogrammed.Set(float64(len(s.Refused)))
	m.own.limits.Set(float64(len(s.Limits)))
	setTime(m.kube.lastDone, end)
	m.changes = m.changes.finish(s.Refused, func(c *change) { m.observeChange(c, end) })
}

func (m *Metrics) countSync(s proxy.Sync) {
	result := "done"
	switch {
	case s.Refused != nil:
		result = "partial"
	case s.Err != nil:
		result = "failed"
	}
	m.own.syncs.WithLabelValues(result).Inc()
	m.own.operations.Add(float64(s.Operations))
	if s.Operations > 0 {
		m.own.commits.Inc()
	}
}

// observe records a sync. Its duration counts once, so that the sum over both families is right; a
// failure is one of both.
func (m *kubeMetrics) observe(s proxy.Sync) {
	primary := string(primaryFamily(s.Snapshot))
	ofKind := m.durationPartial
	if s.Full {
		ofKind = m.durationFull
	}
	m.duration.WithLabelValues(primary).Observe(s.Duration.Seconds())
	ofKind.WithLabelValues(primary).Observe(s.Duration.Seconds())
	if s.Err == nil {
		return
	}
	for _, family := range ipaddr.Families() {
		f := string(family)
		if m.failures.all != nil {
			m.failures.all.WithLabelValues(f).Inc()
		}
		if m.failures.partial != nil && !s.Full {
			m.failures.partial.WithLabelValues(f).Inc()
		}
	}
}

// primaryFamily returns the family of the node's first address; IPv4 if none is known.
func primaryFamily(s proxy.Snapshot) v1.IPFamily {
	if n := s.Node(); n != nil && len(n.Addresses) > 0 && n.Addresses[0].Is6() {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

// verified records that the whole dataplane was found to be right.
func (m *Metrics) verified(proxy.Snapshot) {
	now := time.Now()
	m.own.verified.Set(seconds(now))
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.failing {
		setTime(m.kube.lastDone, now)
	}
}

// follow records what the dataplane holds, and whether it had to be repaired.
func (m *Metrics) follow(s proxy.Sync, isFailure bool) {
	m.latest, m.failing = s.Snapshot, isFailure
	if s.Applied.IsZero() {
		// If it held something before, the next sync is a repair.
		m.unsure = true
		return
	}
	changed := false
	for c := range s.Applied.Changes(m.applied) {
		changed = true
		m.kube.countNoLocal(c.Old, -1)
		m.kube.countNoLocal(c.New, +1)
	}
	if s.Full && s.Err == nil && s.Operations > 0 && !m.applied.IsZero() && (m.unsure || !changed) {
		m.own.repairs.Inc()
	}
	m.applied, m.unsure = s.Applied, false
}

// countNoLocal counts a service port that is added (+1) or removed (-1).
func (m *kubeMetrics) countNoLocal(p *proxy.ServicePort, by float64) {
	if p == nil || !p.HasEndpoints || len(p.Local) > 0 {
		return
	}
	isExternal := func(f proxy.Frontend) bool { return f.Kind != proxy.ClusterIP }
	if p.InternalLocal {
		m.noLocal.WithLabelValues("internal", string(p.Name.Family)).Add(by)
	}
	if p.ExternalLocal && slices.ContainsFunc(p.Frontends, isExternal) {
		m.noLocal.WithLabelValues("external", string(p.Name.Family)).Add(by)
	}
}

// observeChange times a change that is in the kernel since end.
func (m *Metrics) observeChange(c *change, end time.Time) {
	noticed := c.received[sliceKind] // or earlier, as trigger
	for i, f := range ipaddr.Families() {
		for _, at := range c.triggers[i] {
			m.kube.programming.WithLabelValues(string(f)).Observe(between(at, end))
			if at.Before(noticed) {
				noticed = at
			}
		}
	}
	for kind, received := range c.received {
		if received.IsZero() {
			continue
		}
		observe := func(stage string, from, to time.Time) {
			m.own.changes.WithLabelValues(kindName(kind), stage).Observe(between(from, to))
		}
		begin := received
		if kind == sliceKind && len(c.triggers[0])+len(c.triggers[1]) > 0 {
			begin = noticed
			observe("notice", begin, received)
		}
		observe("queue", received, c.taken)
		observe("apply", c.taken, end)
		observe("total", begin, end)
	}
}

// between returns a duration in seconds, never below 0: clocks of two machines may differ.
func between(from, to time.Time) float64 { return max(0, to.Sub(from).Seconds()) }

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
