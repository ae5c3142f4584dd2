package prommetrics

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Options select the metrics.
type Options struct {
	// Mode is kube-proxy's name for the kind of backend: "nftables", "iptables"
	// or "ipvs" bring the failure counters that kube-proxy has in this mode, and "iptables" the numbers
	// of rules, if the backend counts them (CountRules of [proxy.Abilities]). "userspace", "kernelspace" and ""
	// bring neither.
	Mode string
	// Traffic adds the metrics of what is forwarded, if the backend counts it
	// (CountTraffic of [proxy.Abilities]): five time series for each service port. Each scrape reads them
	// from the kernel.
	Traffic bool
}

// Metrics are the metrics of one proxy. All methods may be called from any
// goroutine.
type Metrics struct {
	kube kubeMetrics
	own  ownMetrics

	mu sync.Mutex
	// can are the abilities of the runner's backend: none until the runner begins.
	can     proxy.Abilities
	changes changes
	// tracker has received the changes; nil if it is not known. taken is the newest snapshot that
	// the runner has begun to apply.
	tracker *proxy.ServiceChangeTracker
	taken   proxy.Snapshot
	// latest is the newest snapshot that was tried, applied the newest that
	// the dataplane was known to hold.
	latest, applied proxy.Snapshot
	// unsure says that the dataplane was lost, or was never known; failing that the last sync
	// failed.
	unsure, failing bool
}

// New makes the metrics and registers them. If that fails, none is registered. A Mode that does not
// exist is an error.
func New(r prometheus.Registerer, o Options) (*Metrics, error) {
	known := []string{"", "nftables", "iptables", "ipvs", "userspace", "kernelspace"}
	if !slices.Contains(known, o.Mode) {
		return nil, fmt.Errorf("proxy metrics: Options.Mode is %q, and must be one of %q", o.Mode, known)
	}
	m := &Metrics{unsure: true, failing: true, changes: changes{}}
	all := collectors{newSnapshotCounts(m), newCarried(m)}
	m.kube = newKubeMetrics(&all, o.Mode, m.changeCounts)
	m.own = newOwnMetrics(&all)
	if o.Mode == "iptables" {
		all = append(all, newRules(m))
	}
	if o.Traffic {
		all = append(all, newTraffic(m))
	}
	for i, c := range all {
		if err := r.Register(c); err != nil {
			for _, registered := range all[:i] {
				r.Unregister(registered)
			}
			return nil, fmt.Errorf("proxy metrics: %w", err)
		}
	}
	return m, nil
}

// collectors are what [New] registers. The methods create one and add it.
type collectors []prometheus.Collector

func (c *collectors) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	*c = append(*c, v)
	return v
}

func (c *collectors) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	*c = append(*c, v)
	return v
}

func (c *collectors) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	*c = append(*c, v)
	return v
}

// Observer returns an observer for one Runner, which the metrics then follow. The tracker is
// the one whose snapshots the Runner gets; with nil, the numbers of received and pending changes
// stay 0.
func (m *Metrics) Observer(tracker *proxy.ServiceChangeTracker) proxy.Observer {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tracker = tracker
	return proxy.Observer{Begin: m.begin, Started: m.started, Synced: m.synced, Verified: m.verified}
}

func (m *Metrics) begin(r *proxy.Runner) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.can = r.Backend.Abilities()
	return nil
}

// changeCounts returns how many changes the tracker received, and how many of them the runner has
// not begun to apply.
func (m *Metrics) changeCounts() (total, pending proxy.ChangeCounts) {
	m.mu.Lock()
	tracker, taken := m.tracker, m.taken
	m.mu.Unlock()
	if tracker != nil {
		total, pending = tracker.Received(), tracker.Pending(taken)
	}
	return total, pending
}

// HealthAnswered counts an answer of /healthz or /livez.
func (m *Metrics) HealthAnswered(path string, status int) {
	if vec := m.kube.answers[path]; vec != nil {
		vec.WithLabelValues(strconv.Itoa(status)).Inc()
	}
}

// ConntrackCleaned counts a search for stale flows of one family: its duration, and the
// number of flows that it deleted.
func (m *Metrics) ConntrackCleaned(family v1.IPFamily, took time.Duration, deleted int) {
	m.kube.conntrackDuration.WithLabelValues(string(family)).Observe(took.Seconds())
	m.kube.conntrackDeleted.WithLabelValues(string(family)).Add(float64(max(0, deleted)))
}
