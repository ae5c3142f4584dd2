package prommetrics

import (
	"errors"
	"slices"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

func (m *Metrics) queued(now time.Time) {
	for _, f := range families() {
		m.kube.lastQueued.WithLabelValues(string(f)).Set(seconds(now))
	}
}

// synced takes the account of an Apply.
func (m *Metrics) synced(s proxy.Sync) {
	failed, isPartial := errors.AsType[proxy.PortErrors](s.Err)
	isPartial = isPartial && !s.Applied.IsZero()
	end := s.Start.Add(s.Duration)
	isFailure := s.Err != nil && !isPartial
	m.countSync(s, isPartial)
	m.kube.observe(s)
	m.follow(s, isFailure)
	if isFailure {
		return
	}
	m.own.unprogrammed.Set(float64(len(failed)))
	m.kube.done(end)
	for _, c := range m.changes.finish(failed) {
		m.observeChange(c, end)
	}
}

func (m *Metrics) countSync(s proxy.Sync, isPartial bool) {
	result := "done"
	switch {
	case isPartial:
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

func (m *kubeMetrics) observe(s proxy.Sync) {
	for _, family := range families() {
		f := string(family)
		m.duration.WithLabelValues(f).Observe(s.Duration.Seconds())
		if s.Full {
			m.durationFull.WithLabelValues(f).Observe(s.Duration.Seconds())
		} else {
			m.durationPartial.WithLabelValues(f).Observe(s.Duration.Seconds())
		}
		if s.Err == nil {
			continue
		}
		if m.failures.all != nil {
			m.failures.all.WithLabelValues(f).Inc()
		}
		if m.failures.partial != nil && !s.Full {
			m.failures.partial.WithLabelValues(f).Inc()
		}
	}
}

func (m *kubeMetrics) done(now time.Time) {
	for _, f := range families() {
		m.lastDone.WithLabelValues(string(f)).Set(seconds(now))
	}
}

// verified takes that the whole dataplane was found to be right.
func (m *Metrics) verified() {
	now := time.Now()
	m.own.verified.Set(seconds(now))
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.failing {
		m.kube.done(now)
	}
}

// follow takes what the dataplane holds, and whether it had to be mended.
func (m *Metrics) follow(s proxy.Sync, isFailure bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest, m.failing = s.Snapshot, isFailure
	if s.Applied.IsZero() {
		// It did hold something if it was applied before: what follows mends.
		m.unsure = true
		return
	}
	changed := false
	for c := range s.Applied.Changes(m.applied) {
		changed = true
		m.countNoLocal(c.Old, -1)
		m.countNoLocal(c.New, +1)
	}
	known := !m.applied.IsZero()
	if s.Full && s.Err == nil && s.Operations > 0 && known && (m.unsure || !changed) {
		m.own.repairs.Inc()
	}
	m.applied, m.unsure = s.Applied, false
	if changed || !known {
		for policy, counts := range m.noLocal {
			for i, f := range families() {
				m.kube.noLocal.WithLabelValues(policyName(policy), string(f)).Set(float64(counts[i]))
			}
		}
	}
}

// countNoLocal takes that a service port comes (+1) or goes (-1).
func (m *Metrics) countNoLocal(p *proxy.ServicePort, by int) {
	if p == nil || !p.HasEndpoints || len(p.Local) > 0 {
		return
	}
	isExternal := func(f proxy.Frontend) bool { return f.Kind != proxy.ClusterIP }
	i := index(p.Name.Family)
	if p.InternalLocal {
		m.noLocal[0][i] += by
	}
	if p.ExternalLocal && slices.ContainsFunc(p.Frontends, isExternal) {
		m.noLocal[1][i] += by
	}
}

// observeChange times a change that is in the kernel since end.
func (m *Metrics) observeChange(c *change, end time.Time) {
	noticed := c.heard[sliceKind] // or earlier, as trigger
	for _, t := range c.triggers {
		m.kube.programming.WithLabelValues(string(t.family)).Observe(between(t.at, end))
		if t.at.Before(noticed) {
			noticed = t.at
		}
	}
	for kind, heard := range c.heard {
		if heard.IsZero() {
			continue
		}
		observe := func(stage string, from, to time.Time) {
			m.own.changes.WithLabelValues(kindName(kind), stage).Observe(between(from, to))
		}
		begin := heard
		if kind == sliceKind && len(c.triggers) > 0 {
			begin = noticed
			observe("notice", begin, heard)
		}
		observe("queue", heard, c.taken)
		observe("apply", c.taken, end)
		observe("total", begin, end)
	}
}

// between gives a time in seconds; clocks of two machines may disagree.
func between(from, to time.Time) float64 { return max(0, to.Sub(from).Seconds()) }

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
