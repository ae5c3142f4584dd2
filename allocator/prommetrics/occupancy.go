package prommetrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/allocator"
)

// occupancy collects how full the ranges of a pool are.
type occupancy struct {
	pool             *atomic.Pointer[allocator.Pool]
	ips, freeIPs     *prometheus.Desc
	ports, freePorts *prometheus.Desc
}

func newOccupancy(pool *atomic.Pointer[allocator.Pool]) *occupancy {
	const ip, port = "kube_apiserver_clusterip_allocator_", "kube_apiserver_nodeport_allocator_"
	return &occupancy{
		pool:      pool,
		ips:       prometheus.NewDesc(ip+"allocated_ips", "Addresses that are allocated.", []string{"cidr"}, nil),
		freeIPs:   prometheus.NewDesc(ip+"available_ips", "Addresses that can be allocated.", []string{"cidr"}, nil),
		ports:     prometheus.NewDesc(port+"allocated_ports", "Node ports that are allocated.", nil, nil),
		freePorts: prometheus.NewDesc(port+"available_ports", "Node ports that can be allocated.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (o *occupancy) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{o.ips, o.freeIPs, o.ports, o.freePorts} {
		all <- d
	}
}

// Collect implements [prometheus.Collector].
func (o *occupancy) Collect(all chan<- prometheus.Metric) {
	pool := o.pool.Load()
	if pool == nil {
		return
	}
	hasPorts := false
	var ports allocator.Stats
	for _, r := range pool.Ranges() {
		s := r.Stats
		if r.Config.Draining {
			s.Size = s.Used
		}
		if r.Config.FirstPort > 0 {
			hasPorts = true
			ports.Size, ports.Used = ports.Size+s.Size, ports.Used+s.Used
			continue
		}
		cidr := r.Config.String()
		all <- gauge(o.ips, s.Used, cidr)
		all <- gauge(o.freeIPs, s.Free(), cidr)
	}
	if hasPorts { // These have no label for the range.
		all <- gauge(o.ports, ports.Used)
		all <- gauge(o.freePorts, ports.Free())
	}
}

func gauge(d *prometheus.Desc, n uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
}
