package prommetrics

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
)

// The values of the label direction.
const (
	directionIn  = "in"
	directionOut = "out"
)

// maxRead is how long a scrape waits for the traffic.
const maxRead = 5 * time.Second

// scraped are metrics whose values are read at each scrape.
type scraped struct {
	*Metrics
	descs []*prometheus.Desc
	// read sends the values, given the abilities of the backend, the newest snapshot that was tried, and
	// the newest that the dataplane was known to hold.
	read func(to chan<- prometheus.Metric, can *proxy.Abilities, latest, applied proxy.Snapshot)
}

// desc adds a metric.
func (s *scraped) desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	s.descs = append(s.descs, d)
	return d
}

// Describe implements [prometheus.Collector].
func (s *scraped) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *scraped) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	can, latest, applied := s.can, s.latest, s.applied
	s.mu.Unlock()
	s.read(to, &can, latest, applied)
}

func gauge[N int | uint64](to chan<- prometheus.Metric, d *prometheus.Desc, n N, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
}

func counter(to chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// newSnapshotCounts counts service ports and problems.
func newSnapshotCounts(m *Metrics) *scraped {
	c := &scraped{Metrics: m}
	ports := c.desc("vipkit_service_ports", "Number of service ports.")
	problems := c.desc("vipkit_object_problems", "What is wrong with API objects, by kind of object.", "kind")
	nodeProblems := c.desc("vipkit_node_problems", "Settings of the node that break Services.", "setting")
	c.read = func(to chan<- prometheus.Metric, can *proxy.Abilities, latest, _ proxy.Snapshot) {
		if can.CheckNode != nil && !latest.IsZero() {
			settings := map[string]int{}
			for _, p := range can.CheckNode(latest) {
				settings[p.Field]++
			}
			for setting, n := range settings {
				gauge(to, nodeProblems, n, setting)
			}
		}
		gauge(to, ports, latest.Len())
		kinds := map[string]int{"Service": 0, "EndpointSlice": 0, "Node": 0}
		for p := range latest.Problems() {
			kinds[p.Kind]++
		}
		for kind, n := range kinds {
			gauge(to, problems, n, kind)
		}
	}
	return c
}

// newCarried counts the connections that a backend carries itself.
func newCarried(m *Metrics) *scraped {
	const prefix = "vipkit_userspace_"
	c := &scraped{Metrics: m}
	connections := c.desc(prefix+"connections", "TCP connections that are open.")
	sessions := c.desc(prefix+"sessions", "Current UDP sessions.")
	accepted := c.desc(prefix+"accepted_connections_total", "TCP connections that were accepted.")
	refused := c.desc(prefix+"refused_total", "Connections and sessions that were not served, by reason.", "reason")
	faults := c.desc(prefix+"listener_errors_total", "Errors of listeners.")
	bytes := c.desc(prefix+"bytes_total", "Bytes of data to endpoints (in) and back to clients (out).", "direction")
	c.read = func(to chan<- prometheus.Metric, can *proxy.Abilities, _, _ proxy.Snapshot) {
		if can.CountConnections == nil {
			return
		}
		n := can.CountConnections()
		gauge(to, connections, n.Connections)
		gauge(to, sessions, n.Sessions)
		counter(to, accepted, n.Accepted)
		counter(to, refused, n.Failed, "failed")
		counter(to, refused, n.Denied, "denied")
		counter(to, refused, n.Crowded, "crowded")
		counter(to, faults, n.Faults)
		counter(to, bytes, n.BytesIn, directionIn)
		counter(to, bytes, n.BytesOut, directionOut)
	}
	return c
}

// newRules counts the rules of iptables that a backend has.
func newRules(m *Metrics) *scraped {
	const prefix = "kubeproxy_sync_proxy_rules_iptables_"
	c := &scraped{Metrics: m}
	exist := c.desc(prefix+"total", "Rules of the proxy.", "table", familyLabel)
	last := c.desc(prefix+"last", "Rules that the last sync wrote.", "table", familyLabel)
	c.read = func(to chan<- prometheus.Metric, can *proxy.Abilities, _, _ proxy.Snapshot) {
		if can.CountRules == nil {
			return
		}
		for _, n := range can.CountRules() {
			gauge(to, exist, n.Existing, n.Table, string(n.Family))
			gauge(to, last, n.Written, n.Table, string(n.Family))
		}
	}
	return c
}

// newTraffic counts the traffic of service ports, and the failures to read it: then the traffic is left out, as an
// error would make all metrics fail.
func newTraffic(m *Metrics) *scraped {
	const prefix = "vipkit_service_"
	labels := []string{"namespace", "service", "port", "protocol", "family"}
	directed := append([]string{"direction"}, labels...)
	c := &scraped{Metrics: m}
	connections := c.desc(prefix+"connections_total", "Connections that the dataplane has forwarded to endpoints.", labels...)
	packets := c.desc(prefix+"packets_total", "Packets to endpoints (in) and back to clients (out).", directed...)
	bytes := c.desc(prefix+"bytes_total", "Bytes to endpoints (in) and back to clients (out).", directed...)
	failed := c.desc(prefix+"traffic_failures_total", "Scrapes that lack the traffic of Services, because it could not be read.")
	var failures atomic.Uint64
	c.read = func(to chan<- prometheus.Metric, can *proxy.Abilities, _, applied proxy.Snapshot) {
		defer func() { counter(to, failed, failures.Load()) }()
		if can.CountTraffic == nil || applied.IsZero() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), maxRead)
		defer cancel()
		err := can.CountTraffic(ctx, applied, func(n proxy.ServicePortName, x proxy.Traffic) {
			of := func(direction ...string) []string {
				return append(direction, n.Namespace, n.Name, n.Port, string(n.Protocol), string(n.Family))
			}
			counter(to, connections, x.Connections, of()...)
			counter(to, packets, x.PacketsIn, of(directionIn)...)
			counter(to, packets, x.PacketsOut, of(directionOut)...)
			counter(to, bytes, x.BytesIn, of(directionIn)...)
			counter(to, bytes, x.BytesOut, of(directionOut)...)
		})
		if err != nil {
			failures.Add(1)
		}
	}
	return c
}
