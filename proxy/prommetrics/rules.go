package prommetrics

import "github.com/prometheus/client_golang/prometheus"

// rules reads, at each scrape, how many rules of iptables a backend has.
type rules struct {
	*Metrics
	exist, last *prometheus.Desc
}

func newRules(m *Metrics) rules {
	const prefix = "kubeproxy_sync_proxy_rules_iptables_"
	labels := []string{"table", familyLabel}
	return rules{
		m, prometheus.NewDesc(prefix+"total", "Rules of the proxy.", labels, nil),
		prometheus.NewDesc(prefix+"last", "Rules that the last sync wrote.", labels, nil),
	}
}

func (r rules) Describe(to chan<- *prometheus.Desc) {
	to <- r.exist
	to <- r.last
}

func (r rules) Collect(to chan<- prometheus.Metric) {
	r.mu.Lock()
	count := r.can.CountRules
	r.mu.Unlock()
	if count == nil {
		return
	}
	for _, n := range count() {
		to <- prometheus.MustNewConstMetric(r.exist, prometheus.GaugeValue, float64(n.Existing), n.Table, string(n.Family))
		to <- prometheus.MustNewConstMetric(r.last, prometheus.GaugeValue, float64(n.Written), n.Table, string(n.Family))
	}
}
