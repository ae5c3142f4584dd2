package prommetrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
)

// traffic reads the traffic of service ports at each scrape.
type traffic struct {
	*Metrics
	connections, packets, bytes *prometheus.Desc
	failures                    prometheus.Counter
}

func newTraffic(m *Metrics) traffic {
	const prefix = "vipkit_service_"
	labels := []string{"namespace", "service", "port", "protocol", "family"}
	directed := append([]string{"direction"}, labels...)
	return traffic{
		m, prometheus.NewDesc(prefix+"connections_total", "Connections that the dataplane has forwarded to endpoints.", labels, nil),
		prometheus.NewDesc(prefix+"packets_total", "Packets to endpoints (in) and back to clients (out).", directed, nil),
		prometheus.NewDesc(prefix+"bytes_total", "Bytes to endpoints (in) and back to clients (out).", directed, nil),
		prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "traffic_failures_total", Help: "Scrapes that lack the traffic of Services, because it could not be read.",
		}),
	}
}

func (t traffic) Describe(to chan<- *prometheus.Desc) {
	to <- t.connections
	to <- t.packets
	to <- t.bytes
	t.failures.Describe(to)
}

// The values of the label direction.
const (
	directionIn  = "in"
	directionOut = "out"
)

// maxRead is how long a scrape waits for the traffic.
const maxRead = 5 * time.Second

// Collect leaves the traffic out if it cannot be read: an error would make all metrics fail.
func (t traffic) Collect(to chan<- prometheus.Metric) {
	t.mu.Lock()
	count, held := t.can.CountTraffic, t.applied
	t.mu.Unlock()
	if count != nil && !held.IsZero() {
		ctx, cancel := context.WithTimeout(context.Background(), maxRead)
		err := count(ctx, held, func(n proxy.ServicePortName, x proxy.Traffic) {
			labels := []string{n.Namespace, n.Name, n.Port, string(n.Protocol), string(n.Family)}
			send := func(d *prometheus.Desc, v uint64, direction ...string) {
				to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append(direction, labels...)...)
			}
			send(t.connections, x.Connections)
			send(t.packets, x.PacketsIn, directionIn)
			send(t.packets, x.PacketsOut, directionOut)
			send(t.bytes, x.BytesIn, directionIn)
			send(t.bytes, x.BytesOut, directionOut)
		})
		cancel()
		if err != nil {
			t.failures.Inc()
		}
	}
	t.failures.Collect(to)
}
