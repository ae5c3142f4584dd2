package prommetrics

import "github.com/prometheus/client_golang/prometheus"

// carried reads, at each scrape, the connections that a backend carries itself.
type carried struct {
	*Metrics
	connections, sessions, accepted, refused, faults, bytes *prometheus.Desc
}

func newCarried(m *Metrics) carried {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("vipkit_userspace_"+name, help, labels, nil)
	}
	return carried{
		m, desc("connections", "TCP connections that are open."), desc("sessions", "Current UDP sessions."),
		desc("accepted_connections_total", "TCP connections that were accepted."),
		desc("refused_total", "Connections and sessions that were not served, by reason.", "reason"),
		desc("listener_errors_total", "Errors of listeners."),
		desc("bytes_total", "Bytes of data to endpoints (in) and back to clients (out).", "direction"),
	}
}

func (c carried) Describe(to chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{c.connections, c.sessions, c.accepted, c.refused, c.faults, c.bytes} {
		to <- d
	}
}

func (c carried) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	count := c.can.CountConnections
	c.mu.Unlock()
	if count == nil {
		return
	}
	n := count()
	gauge := func(d *prometheus.Desc, v int) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	total := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(c.connections, n.Connections)
	gauge(c.sessions, n.Sessions)
	total(c.accepted, n.Accepted)
	total(c.refused, n.Failed, "failed")
	total(c.refused, n.Denied, "denied")
	total(c.refused, n.Crowded, "crowded")
	total(c.faults, n.Faults)
	total(c.bytes, n.BytesIn, directionIn)
	total(c.bytes, n.BytesOut, directionOut)
}
