package prommetrics

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Options says which metrics there are.
type Options struct {
	// Mode is kube-proxy's name for the kind of backend: "nftables", "iptables"
	// or "ipvs" bring the failure counters that kube-proxy has in this mode.
	// Any other has none.
	Mode string
}

// Metrics are the metrics of one proxy. All methods may be called from any
// goroutine.
type Metrics struct {
	kube    kubeMetrics
	own     ownMetrics
	changes changes

	mu sync.Mutex
	// latest is the newest snapshot that was tried, applied the newest that
	// the dataplane was known to hold.
	latest, applied proxy.Snapshot
	noLocal         [2][2]int // by policy and family
	// unsure says that the dataplane was lost, or has never been known, failing
	// that it does not hold what it must.
	unsure, failing bool
	node            nodeChecker // nil if the backend is none, or not known yet
}

// nodeChecker is the optional ability of backends of this name.
type nodeChecker interface {
	CheckNode(s proxy.Snapshot) []*proxy.Problem
}

// New makes the metrics and registers them. If that fails, none is registered.
func New(r prometheus.Registerer, o Options) (*Metrics, error) {
	m := &Metrics{unsure: true, failing: true, changes: newChanges(time.Now())}
	reg := &registration{to: r}
	m.kube = newKubeMetrics(reg, o.Mode, &m.changes)
	m.own = newOwnMetrics(reg)
	add(reg, prometheus.Collector(objects{m}))
	if reg.err != nil {
		for _, c := range reg.done {
			r.Unregister(c)
		}
		return nil, fmt.Errorf("proxy metrics: %w", reg.err)
	}
	return m, nil
}

// registration registers collectors until one fails.
type registration struct {
	to   prometheus.Registerer
	done []prometheus.Collector
	err  error
}

func add[C prometheus.Collector](r *registration, c C) C {
	if r.err == nil {
		if r.err = r.to.Register(c); r.err == nil {
			r.done = append(r.done, c)
		}
	}
	return c
}

// Tracker gives a tracker that notes what it is told, when, and passes it on to
// t. Whoever watches API objects hands them to this one, not to t.
func (m *Metrics) Tracker(t proxy.ServiceChangeTracker) proxy.ServiceChangeTracker {
	return tracker{t, &m.changes}
}

// Watch makes the metrics follow what r does; what r called before, it goes on
// calling. It must be called once, before r runs.
func (m *Metrics) Watch(r *proxy.Runner) {
	r.Source = &source{inner: r.Source, metrics: m}
	m.mu.Lock()
	m.node, _ = r.Backend.(nodeChecker)
	m.mu.Unlock()
	r.Follow(m.synced, func(proxy.Snapshot) { m.verified() })
}

// HealthAnswered counts an answer of /healthz or /livez.
func (m *Metrics) HealthAnswered(path string, status int) {
	switch path {
	case "/healthz":
		m.kube.healthz.WithLabelValues(strconv.Itoa(status)).Inc()
	case "/livez":
		m.kube.livez.WithLabelValues(strconv.Itoa(status)).Inc()
	}
}

// ConntrackCleaned counts a search for stale flows of one family: how long it
// took, and how many flows it deleted.
func (m *Metrics) ConntrackCleaned(family v1.IPFamily, took time.Duration, deleted int) {
	m.kube.conntrackDuration.WithLabelValues(string(family)).Observe(took.Seconds())
	m.kube.conntrackDeleted.WithLabelValues(string(family)).Add(float64(max(0, deleted)))
}

func families() [2]v1.IPFamily { return [...]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }
