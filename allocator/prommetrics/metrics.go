package prommetrics

import (
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
)

// The values of the label scope.
const (
	static  = "static"
	dynamic = "dynamic"
)

// Metrics are the metrics of one pool and of its repair. It is the
// [allocator.Observer] of the pool. Any number of goroutines may use it.
type Metrics struct {
	pool atomic.Pointer[allocator.Pool]

	ips, ipErrors     *prometheus.CounterVec
	ports, portErrors *prometheus.CounterVec
	took              *prometheus.HistogramVec
	ipRepairs         *prometheus.CounterVec
	portRepairs       *prometheus.CounterVec
	failedRepairs     [2]prometheus.Counter // of addresses, of ports
	storeErrors       prometheus.Counter
	lastSync          prometheus.Gauge
}

var _ allocator.Observer = (*Metrics)(nil)

// New registers the metrics: all of them, or none and the registry's error.
func New(r prometheus.Registerer) (*Metrics, error) {
	const ip, port = "kube_apiserver_clusterip_allocator_", "kube_apiserver_nodeport_allocator_"
	const ipRepair, portRepair = "apiserver_clusterip_repair_", "apiserver_nodeport_repair_"
	m := &Metrics{
		ips:         counters(ip+"allocation_total", "Addresses allocated.", "cidr", "scope"),
		ipErrors:    counters(ip+"allocation_errors_total", "Requests for addresses that failed.", "cidr", "scope"),
		ports:       counters(port+"allocation_total", "Node ports allocated.", "scope"),
		portErrors:  counters(port+"allocation_errors_total", "Requests for node ports that failed.", "scope"),
		ipRepairs:   counters(ipRepair+"ip_errors_total", "Differences between Services and allocated addresses.", "type"),
		portRepairs: counters(portRepair+"port_errors_total", "Differences between Services and allocated node ports.", "type"),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: ip + "allocation_duration_seconds", Help: "How long it took to allocate addresses.", Buckets: prometheus.DefBuckets,
		}, []string{"cidr"}),
		failedRepairs: [2]prometheus.Counter{
			counter(ipRepair+"reconcile_errors_total", "Passes over addresses that failed."),
			counter(portRepair+"reconcile_errors_total", "Passes over node ports that failed."),
		},
		storeErrors: counter("vipkit_allocator_store_errors_total", "Failed reads of the store, and ended watches."),
		lastSync: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "vipkit_allocator_last_sync_timestamp_seconds", Help: "When the whole store was last read.",
		}),
	}
	return m, register(r, m.ips, m.ipErrors, m.ports, m.portErrors, m.ipRepairs, m.portRepairs, m.took,
		m.failedRepairs[0], m.failedRepairs[1], m.storeErrors, m.lastSync, newOccupancy(&m.pool))
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// register registers all or none.
func register(r prometheus.Registerer, all ...prometheus.Collector) error {
	for i, c := range all {
		if err := r.Register(c); err != nil {
			for _, done := range all[:i] {
				r.Unregister(done)
			}
			return err
		}
	}
	return nil
}

// Watch makes the metrics show how full the ranges of this pool are, and of no other.
// It starts the counters of these ranges at 0, so that Prometheus sees the first
// allocation as an increase.
func (m *Metrics) Watch(pool *allocator.Pool) {
	m.pool.Store(pool)
	for _, r := range pool.Ranges() {
		for _, scope := range []string{static, dynamic} {
			if r.Config.FirstPort == 0 {
				m.ips.WithLabelValues(r.Config.String(), scope)
				m.ipErrors.WithLabelValues(r.Config.String(), scope)
			} else {
				m.ports.WithLabelValues(scope)
				m.portErrors.WithLabelValues(scope)
			}
		}
	}
}

// Allocated implements [allocator.Observer].
func (m *Metrics) Allocated(a allocator.Allocation) {
	scope := dynamic
	if a.IsStatic {
		scope = static
	}
	switch {
	case a.Kind < allocator.IPv4 || a.Kind > allocator.Port: // an invalid request
	case a.Kind == allocator.Port && a.Err != nil:
		m.portErrors.WithLabelValues(scope).Inc()
	case a.Kind == allocator.Port:
		m.ports.WithLabelValues(scope).Add(float64(a.Count))
	case a.Err != nil:
		m.ipErrors.WithLabelValues(a.Range, scope).Inc()
	default:
		m.ips.WithLabelValues(a.Range, scope).Add(float64(a.Count))
		m.took.WithLabelValues(a.Range).Observe(a.Took.Seconds())
	}
}

// Synced implements [allocator.Observer].
func (m *Metrics) Synced(err error) {
	if err != nil {
		m.storeErrors.Inc()
		return
	}
	m.lastSync.SetToCurrentTime()
}

// Repaired counts the findings of a pass; use it as [repair.Controller].Observe. A pass
// that failed counts for each kind of range that the pool has.
func (m *Metrics) Repaired(findings []repair.Finding, err error) {
	for _, f := range findings {
		kind := typeOf(f)
		switch {
		case kind == "":
		case isPort(f):
			m.portRepairs.WithLabelValues(kind).Inc()
		default:
			m.ipRepairs.WithLabelValues(kind).Inc()
		}
	}
	if err == nil {
		return
	}
	ips, ports := m.kinds()
	if ips {
		m.failedRepairs[0].Inc()
	}
	if ports {
		m.failedRepairs[1].Inc()
	}
}

// kinds reports whether the pool has ranges of addresses and of ports; before Watch, that
// it has both.
func (m *Metrics) kinds() (ips, ports bool) {
	pool := m.pool.Load()
	if pool == nil {
		return true, true
	}
	for _, r := range pool.Ranges() {
		ips, ports = ips || r.Config.FirstPort == 0, ports || r.Config.FirstPort > 0
	}
	return ips, ports
}

// typeOf returns the value of the label type; empty for findings that are not counted.
func typeOf(f repair.Finding) string {
	switch f.Problem {
	case repair.Missing:
		return "repair"
	case repair.Duplicate:
		return "duplicate"
	case repair.OutOfRange:
		return "outOfRange"
	case repair.Invalid:
		return "invalid"
	case repair.WrongOwner:
		if f.Mended {
			return "repair"
		}
	case repair.Orphaned:
		if f.Mended {
			return "leak"
		}
	case repair.NonCanonical:
	}
	return ""
}

// isPort reports whether a finding is about a port or about a number that is not a valid
// port.
func isPort(f repair.Finding) bool {
	if f.Key.Kind() != 0 {
		return f.Key.Kind() == allocator.Port
	}
	_, err := strconv.Atoi(f.Text)
	return err == nil || errors.Is(err, strconv.ErrRange)
}
