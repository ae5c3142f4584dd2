package prommetrics

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// counting is a backend that counts the traffic of all service ports but one.
type counting struct {
	backend
	except string
	err    error
	reads  int
}

func (c *counting) Abilities() proxy.Abilities { return proxy.Abilities{CountTraffic: c.countTraffic} }

func (c *counting) countTraffic(_ context.Context, s proxy.Snapshot, each func(proxy.ServicePortName, proxy.Traffic)) error {
	c.reads++
	for p := range s.All() {
		if p.Name.Name != c.except {
			each(p.Name, proxy.Traffic{Connections: 1, PacketsIn: 2, PacketsOut: 3, BytesIn: 4, BytesOut: 5})
		}
	}
	return c.err
}

// The traffic is read at each scrape, of what the dataplane holds, and only if it is wanted. If it
// cannot be read, the other metrics are there, and the failure is counted.
func TestTraffic(t *testing.T) {
	const pattern = "^vipkit_service_(c|p.*s_|b|t)"
	held := proxy.NewSnapshot(&proxy.Node{}, ports("a", "b")...)
	for _, wanted := range []bool{false, true} {
		b := &counting{except: "b"}
		r := prometheus.NewRegistry()
		m, err := New(r, Options{Traffic: wanted})
		testenv.NoError(t, err)
		testenv.NoError(t, m.begin(&proxy.Runner{Backend: b}))
		none := []string{"vipkit_service_traffic_failures_total 0"}
		if !wanted {
			none = nil
		}
		wantSamples(t, r, "before the first sync", pattern, none...)
		m.synced(proxy.Sync{Snapshot: held, Applied: held})
		if !wanted {
			wantSamples(t, r, "unwanted", pattern)
			if b.reads > 0 {
				t.Errorf("unwanted: got %d reads, want none", b.reads)
			}
			continue
		}
		const labels = `family="IPv4",namespace="ns",port="http",protocol="TCP",service="a"} `
		wantSamples(
			t, r, "after a sync", pattern,
			`vipkit_service_bytes_total{direction="in",`+labels+"4", `vipkit_service_bytes_total{direction="out",`+labels+"5",
			"vipkit_service_connections_total{"+labels+"1",
			`vipkit_service_packets_total{direction="in",`+labels+"2", `vipkit_service_packets_total{direction="out",`+labels+"3",
			"vipkit_service_traffic_failures_total 0",
		)
		b.err = errors.New("no permission")
		wantSamples(t, r, "after a failure", "^vipkit_syncs_total.*done|failures", "vipkit_service_traffic_failures_total 1", `vipkit_syncs_total{result="done"} 1`)
	}
}

func ports(services ...string) []*proxy.ServicePort {
	return objects.Many(len(services), func(i int) *proxy.ServicePort { return snapshots.Port("ns/"+services[i]+":http", "") })
}

// carrying is a backend that carries connections itself.
type carrying struct{ backend }

func (*carrying) Abilities() proxy.Abilities {
	return proxy.Abilities{CountConnections: func() proxy.ConnectionCounts {
		return proxy.ConnectionCounts{
			Connections: 1, Sessions: 2, Accepted: 3, Failed: 4, Denied: 5, Crowded: 6, Faults: 7, BytesIn: 8, BytesOut: 9,
		}
	}}
}

// Connections are those of the backend at each scrape; a backend that carries none has none.
func TestCarriedConnections(t *testing.T) {
	m, r := newMetrics(t, "")
	for _, b := range []proxy.Backend{&backend{}, &carrying{}} {
		testenv.NoError(t, m.begin(&proxy.Runner{Backend: b}))
		if _, can := b.(*carrying); !can {
			wantSamples(t, r, "a backend of the kernel", "^vipkit_userspace")
		}
	}
	wantSamples(
		t, r, "a backend that carries connections", "^vipkit_userspace",
		"vipkit_userspace_accepted_connections_total 3", `vipkit_userspace_bytes_total{direction="in"} 8`, `vipkit_userspace_bytes_total{direction="out"} 9`, "vipkit_userspace_connections 1", "vipkit_userspace_listener_errors_total 7",
		`vipkit_userspace_refused_total{reason="crowded"} 6`, `vipkit_userspace_refused_total{reason="denied"} 5`,
		`vipkit_userspace_refused_total{reason="failed"} 4`, "vipkit_userspace_sessions 2",
	)
}
