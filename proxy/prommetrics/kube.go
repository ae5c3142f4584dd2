package prommetrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// kubeMetrics are the metrics that kube-proxy has, by its names. The vectors have the
// label ip_family, unless a comment lists others.
type kubeMetrics struct {
	duration, durationFull, durationPartial *prometheus.HistogramVec
	programming                             *prometheus.HistogramVec
	lastDone, lastQueued                    *prometheus.GaugeVec
	noLocal                                 *prometheus.GaugeVec              // traffic_policy, ip_family
	answers                                 map[string]*prometheus.CounterVec // by path; code
	conntrackDuration                       *prometheus.HistogramVec
	conntrackDeleted                        *prometheus.CounterVec
	// failures are nil in modes in which kube-proxy lacks them.
	failures struct{ all, partial *prometheus.CounterVec }
}

const familyLabel = "ip_family"

// syncBuckets and programmingBuckets return the bucket bounds of kube-proxy.
func syncBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

func programmingBuckets() []float64 {
	return slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
}

func newKubeMetrics(c *collectors, mode string, counts func() (total, pending proxy.ChangeCounts)) kubeMetrics {
	const sync = "kubeproxy_sync_proxy_rules_"
	m := kubeMetrics{
		duration: c.histogram(sync+"duration_seconds", "Time of one sync.", syncBuckets(), familyLabel),
		durationFull: c.histogram("kubeproxy_sync_full_proxy_rules_duration_seconds",
			"Time of one sync that started from nothing known.", syncBuckets(), familyLabel),
		durationPartial: c.histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Time of one sync of what had changed.", syncBuckets(), familyLabel),
		programming: c.histogram("kubeproxy_network_programming_duration_seconds",
			"Time from the change of a pod or Service to the moment at which this node's dataplane follows it.", programmingBuckets(), familyLabel),
		lastDone:   c.gauge(sync+"last_timestamp_seconds", "When the dataplane was last known to hold what it must.", familyLabel),
		lastQueued: c.gauge(sync+"last_queued_timestamp_seconds", "When there was last something to sync.", familyLabel),
		noLocal: c.gauge(sync+"no_local_endpoints_total",
			"Service ports with a Local traffic policy and endpoints, but none on this node.", "traffic_policy", familyLabel),
		answers: map[string]*prometheus.CounterVec{
			"/healthz": c.counter("kubeproxy_proxy_healthz_total", "Answers at /healthz.", "code"),
			"/livez":   c.counter("kubeproxy_proxy_livez_total", "Answers at /livez.", "code"),
		},
		conntrackDuration: c.histogram("kubeproxy_conntrack_reconciler_sync_duration_seconds",
			"Time of one search for stale flows.", syncBuckets(), familyLabel),
		conntrackDeleted: c.counter("kubeproxy_conntrack_reconciler_deleted_entries_total", "Stale flows that were deleted.", familyLabel),
	}
	const failed = "Syncs that failed, if only for some service ports."
	byFamily := []*prometheus.CounterVec{m.conntrackDeleted}
	switch mode {
	case "nftables":
		m.failures.all = c.counter(sync+"nftables_sync_failures_total", failed, familyLabel)
		byFamily = append(byFamily, m.failures.all, c.counter(sync+"nftables_cleanup_failures_total",
			"Failures to delete what is not needed any more; deleting is part of the sync here, so there are none.", familyLabel))
	case "iptables":
		m.failures.partial = c.counter(sync+"iptables_partial_restore_failures_total",
			"Syncs of what had changed that failed, if only for some service ports.", familyLabel)
		byFamily = append(byFamily, m.failures.partial)
		fallthrough
	case "ipvs":
		m.failures.all = c.counter(sync+"iptables_restore_failures_total", failed, familyLabel)
		byFamily = append(byFamily, m.failures.all)
	}
	for name, of := range map[string]func(proxy.ChangeCounts) uint64{
		"service":  func(n proxy.ChangeCounts) uint64 { return n.Services },
		"endpoint": func(n proxy.ChangeCounts) uint64 { return n.EndpointSlices },
	} {
		*c = append(*c, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: sync + name + "_changes_pending", Help: "Changes received that no sync has taken up."},
			func() float64 { _, pending := counts(); return float64(of(pending)) }))
		*c = append(*c, prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: sync + name + "_changes_total", Help: "Changes received."},
			func() float64 { total, _ := counts(); return float64(of(total)) }))
	}
	m.start(byFamily)
	return m
}

// start creates the series whose labels are known.
func (m *kubeMetrics) start(byFamily []*prometheus.CounterVec) {
	for _, f := range ipaddr.Families() {
		for _, c := range byFamily {
			c.WithLabelValues(string(f))
		}
		m.noLocal.WithLabelValues("internal", string(f))
		m.noLocal.WithLabelValues("external", string(f))
	}
	for _, vec := range m.answers {
		vec.WithLabelValues("200")
		vec.WithLabelValues("503")
	}
}

// setTime sets a time for both families.
func setTime(g *prometheus.GaugeVec, t time.Time) {
	for _, f := range ipaddr.Families() {
		g.WithLabelValues(string(f)).Set(seconds(t))
	}
}
