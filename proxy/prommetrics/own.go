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
