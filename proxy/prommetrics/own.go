package prommetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
)

// ownMetrics are those that kube-proxy does not have.
type ownMetrics struct {
	changes      *prometheus.HistogramVec // kind, stage
	syncs        *prometheus.CounterVec   // result
	commits      prometheus.Counter
	operations   prometheus.Counter
	repairs      prometheus.Counter
	verified     prometheus.Gauge
	unprogrammed prometheus.Gauge
}

func newOwnMetrics(r *registration) ownMetrics {
	number := func(name, help string) prometheus.Counter {
		return add(r, prometheus.NewCounter(prometheus.CounterOpts{Namespace: "vipkit", Name: name, Help: help}))
	}
	m := ownMetrics{
		changes: add(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "vipkit", Name: "change_duration_seconds",
			Help:    "Time from the change of an API object to the kernel, by stage.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 18),
		}, []string{"kind", "stage"})),
		syncs: add(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "vipkit", Name: "syncs_total", Help: "Syncs that were done, done but for some service ports, or failed.",
		}, []string{"result"})),
		commits:    number("commits_total", "Syncs that wrote to the kernel."),
		operations: number("kernel_operations_total", "Operations in the kernel, as the backend counts them."),
		repairs:    number("drift_repairs_total", "Syncs that mended what somebody else had changed."),
		verified: add(r, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "vipkit", Name: "last_verified_timestamp_seconds", Help: "When the whole dataplane was last found right.",
		})),
		unprogrammed: add(r, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "vipkit", Name: "unprogrammed_service_ports", Help: "Service ports that the dataplane refused.",
		})),
	}
	for _, result := range [...]string{"done", "partial", "failed"} {
		m.syncs.WithLabelValues(result)
	}
	return m
}

// objects counts what there is when it is asked.
type objects struct{ *Metrics }

func (objects) ports() *prometheus.Desc {
	return prometheus.NewDesc("vipkit_service_ports", "Service ports that there are.", nil, nil)
}

func (objects) problems() *prometheus.Desc {
	return prometheus.NewDesc("vipkit_object_problems", "What is wrong with API objects, by kind of object.", []string{"kind"}, nil)
}

func (objects) nodeProblems() *prometheus.Desc {
	return prometheus.NewDesc("vipkit_node_problems", "Settings of the node that break Services.", []string{"setting"}, nil)
}

func (o objects) Describe(to chan<- *prometheus.Desc) {
	to <- o.ports()
	to <- o.problems()
	to <- o.nodeProblems()
}

func (o objects) Collect(to chan<- prometheus.Metric) {
	s, node := o.snapshot()
	if node != nil && !s.IsZero() {
		settings := map[string]int{}
		for _, p := range node.CheckNode(s) {
			settings[p.Field]++
		}
		for setting, n := range settings {
			to <- prometheus.MustNewConstMetric(o.nodeProblems(), prometheus.GaugeValue, float64(n), setting)
		}
	}
	to <- prometheus.MustNewConstMetric(o.ports(), prometheus.GaugeValue, float64(s.Len()))
	kinds := map[string]int{"Service": 0, "EndpointSlice": 0, "Node": 0}
	for p := range s.Problems() {
		kinds[p.Kind]++
	}
	for kind, n := range kinds {
		to <- prometheus.MustNewConstMetric(o.problems(), prometheus.GaugeValue, float64(n), kind)
	}
}

func (m *Metrics) snapshot() (proxy.Snapshot, nodeChecker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest, m.node
}
