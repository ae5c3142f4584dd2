package prommetrics

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// carrying is a backend that carries connections itself.
type carrying struct{ backend }

func (*carrying) CountConnections() proxy.ConnectionCounts {
	return proxy.ConnectionCounts{
		Connections: 1, Sessions: 2, Accepted: 3, Failed: 4, Denied: 5, Crowded: 6, Faults: 7, BytesIn: 8, BytesOut: 9,
	}
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
