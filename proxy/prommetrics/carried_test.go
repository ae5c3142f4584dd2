package prommetrics

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// carrying is a backend that carries connections itself.
type carrying struct{ backend }

func (*carrying) CountConnections() (open [2]int, accepted uint64, refused [3]uint64, faults uint64, bytes [2]uint64) {
	return [2]int{1, 2}, 3, [3]uint64{4, 5, 6}, 7, [2]uint64{8, 9}
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
