package prommetrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// ownMetrics are the metrics that kube-proxy lacks.
type ownMetrics struct {
	changes      *prometheus.HistogramVec // kind, stage
	syncs        *prometheus.CounterVec   // result
	commits      prometheus.Counter
	operations   prometheus.Counter
	repairs      prometheus.Counter
	verified     prometheus.Gauge
	unprogrammed prometheus.Gauge
	limits       prometheus.Gauge
}

func newOwnMetrics(c *collectors) ownMetrics {
	m := ownMetrics{
		changes: c.histogram("vipkit_change_duration_seconds", "Time from the change of an API object to the kernel, by stage.",
			prometheus.ExponentialBuckets(0.00025, 2, 18), "kind", "stage"),
		syncs:        c.counter("vipkit_syncs_total", "Syncs that were done, done but for some service ports, or failed.", "result"),
		commits:      c.counter("vipkit_commits_total", "Syncs that wrote to the kernel.").WithLabelValues(),
		operations:   c.counter("vipkit_kernel_operations_total", "Operations in the kernel, as the backend counts them.").WithLabelValues(),
		repairs:      c.counter("vipkit_drift_repairs_total", "Syncs that repaired what another program had changed.").WithLabelValues(),
		verified:     c.gauge("vipkit_last_verified_timestamp_seconds", "When the whole dataplane was last found right.").WithLabelValues(),
		unprogrammed: c.gauge("vipkit_unprogrammed_service_ports", "Service ports that the dataplane refused.").WithLabelValues(),
		limits: c.gauge("vipkit_service_port_limits",
			"What Services request and the dataplane keeps only in part, by service port.").WithLabelValues(),
	}
	for _, result := range [...]string{"done", "partial", "failed"} {
		m.syncs.WithLabelValues(result)
	}
	return m
}

// snapshotCounts counts service ports and problems at each scrape.
type snapshotCounts struct {
	*Metrics
	ports, problems, nodeProblems *prometheus.Desc
}

func newSnapshotCounts(m *Metrics) snapshotCounts {
	return snapshotCounts{
		m, prometheus.NewDesc("vipkit_service_ports", "Number of service ports.", nil, nil),
		prometheus.NewDesc("vipkit_object_problems", "What is wrong with API objects, by kind of object.", []string{"kind"}, nil),
		prometheus.NewDesc("vipkit_node_problems", "Settings of the node that break Services.", []string{"setting"}, nil),
	}
}

func (o snapshotCounts) Describe(to chan<- *prometheus.Desc) {
	to <- o.ports
	to <- o.problems
	to <- o.nodeProblems
}

func (o snapshotCounts) Collect(to chan<- prometheus.Metric) {
	o.mu.Lock()
	s, check := o.latest, o.can.CheckNode
	o.mu.Unlock()
	if check != nil && !s.IsZero() {
		settings := map[string]int{}
		for _, p := range check(s) {
			settings[p.Field]++
		}
		for setting, n := range settings {
			to <- prometheus.MustNewConstMetric(o.nodeProblems, prometheus.GaugeValue, float64(n), setting)
		}
	}
	to <- prometheus.MustNewConstMetric(o.ports, prometheus.GaugeValue, float64(s.Len()))
	kinds := map[string]int{"Service": 0, "EndpointSlice": 0, "Node": 0}
	for p := range s.Problems() {
		kinds[p.Kind]++
	}
	for kind, n := range kinds {
		to <- prometheus.MustNewConstMetric(o.problems, prometheus.GaugeValue, float64(n), kind)
	}
}
