package prommetrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// kubeMetrics are those that kube-proxy has, by its names. The vectors have the
// label ip_family, unless they say otherwise.
type kubeMetrics struct {
	duration, durationFull, durationPartial *prometheus.HistogramVec
	programming                             *prometheus.HistogramVec
	lastDone, lastQueued                    *prometheus.GaugeVec
	noLocal                                 *prometheus.GaugeVec   // traffic_policy, ip_family
	healthz, livez                          *prometheus.CounterVec // code
	conntrackDuration                       *prometheus.HistogramVec
	conntrackDeleted                        *prometheus.CounterVec
	failures                                failureCounters
}

// failureCounters are the counters of failed syncs of one mode; those of a mode
// that does not have them are nil.
type failureCounters struct {
	all, partial *prometheus.CounterVec
}

// The bucket bounds of kube-proxy.
func syncBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

func programmingBuckets() []float64 {
	return slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
}

func newKubeMetrics(r *registration, mode string, c *changes) kubeMetrics {
	m := kubeMetrics{
		duration:        histogram(r, "sync_proxy_rules_duration_seconds", "Time of one sync.", syncBuckets()),
		durationFull:    histogram(r, "sync_full_proxy_rules_duration_seconds", "Time of one sync that started from nothing known.", syncBuckets()),
		durationPartial: histogram(r, "sync_partial_proxy_rules_duration_seconds", "Time of one sync of what had changed.", syncBuckets()),
		programming: histogram(r, "network_programming_duration_seconds",
			"Time from the change of a pod or Service to the moment at which this node's dataplane follows it.", programmingBuckets()),
		lastDone:   gauge(r, "sync_proxy_rules_last_timestamp_seconds", "When the dataplane was last known to hold what it must."),
		lastQueued: gauge(r, "sync_proxy_rules_last_queued_timestamp_seconds", "When there was last something to sync."),
		noLocal: gauge(r, "sync_proxy_rules_no_local_endpoints_total",
			"Service ports with a Local traffic policy and endpoints, but none on this node.", "traffic_policy"),
		healthz:           counter(r, "proxy_healthz_total", "Answers at /healthz.", "code"),
		livez:             counter(r, "proxy_livez_total", "Answers at /livez.", "code"),
		conntrackDuration: histogram(r, "conntrack_reconciler_sync_duration_seconds", "Time of one search for stale flows.", syncBuckets()),
		conntrackDeleted:  counter(r, "conntrack_reconciler_deleted_entries_total", "Stale flows that were deleted.", "ip_family"),
		failures:          newFailureCounters(r, mode),
	}
	plain := func(name, help string, value func(*changes) float64) (prometheus.Opts, func() float64) {
		return prometheus.Opts{Namespace: "kubeproxy", Name: name, Help: help}, func() float64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return value(c)
		}
	}
	for i, name := range [...]string{serviceKind: "service", sliceKind: "endpoint"} {
		opts, value := plain("sync_proxy_rules_"+name+"_changes_pending", "Changes heard of that no sync has taken up.",
			func(c *changes) float64 { return float64(c.pending[i]) })
		add(r, prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts), value))
		opts, value = plain("sync_proxy_rules_"+name+"_changes_total", "Changes heard of.",
			func(c *changes) float64 { return float64(c.total[i]) })
		add(r, prometheus.NewCounterFunc(prometheus.CounterOpts(opts), value))
	}
	m.start()
	return m
}

// start makes the series appear whose labels are known.
func (m *kubeMetrics) start() {
	for _, f := range families() {
		m.conntrackDeleted.WithLabelValues(string(f))
		for policy := range 2 {
			m.noLocal.WithLabelValues(policyName(policy), string(f))
		}
		for _, c := range []*prometheus.CounterVec{m.failures.all, m.failures.partial} {
			if c != nil {
				c.WithLabelValues(string(f))
			}
		}
	}
	for _, code := range [...]string{"200", "503"} {
		m.healthz.WithLabelValues(code)
		m.livez.WithLabelValues(code)
	}
}

func newFailureCounters(r *registration, mode string) failureCounters {
	make := func(name, help string) *prometheus.CounterVec {
		return counter(r, "sync_proxy_rules_"+name+"_failures_total", help, "ip_family")
	}
	var f failureCounters
	switch mode {
	case "nftables":
		f.all = make("nftables_sync", "Syncs that failed, if only for some service ports.")
		cleanup := make("nftables_cleanup", "Failures to delete what is not needed any more; deleting is part of the sync here, so there are none.")
		for _, family := range families() {
			cleanup.WithLabelValues(string(family))
		}
	case "iptables":
		f.all = make("iptables_restore", "Syncs that failed, if only for some service ports.")
		f.partial = make("iptables_partial_restore", "Syncs of what had changed that failed, if only for some service ports.")
	case "ipvs":
		f.all = make("iptables_restore", "Syncs that failed, if only for some service ports.")
	}
	return f
}

func histogram(r *registration, name, help string, buckets []float64) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Namespace: "kubeproxy", Name: name, Help: help, Buckets: buckets}
	return add(r, prometheus.NewHistogramVec(opts, []string{"ip_family"}))
}

func gauge(r *registration, name, help string, labels ...string) *prometheus.GaugeVec {
	opts := prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}
	return add(r, prometheus.NewGaugeVec(opts, append(labels, "ip_family")))
}

func counter(r *registration, name, help, label string) *prometheus.CounterVec {
	opts := prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help}
	return add(r, prometheus.NewCounterVec(opts, []string{label}))
}

// index gives the place of a family in tables.
func index(f v1.IPFamily) int {
	if f == v1.IPv6Protocol {
		return 1
	}
	return 0
}

func policyName(policy int) string { return [...]string{"internal", "external"}[policy] }
