package prommetrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The cost of one change among 10,000 Services, with and without metrics.
func BenchmarkFollowOneChange(b *testing.B) {
	for _, followed := range []bool{false, true} {
		b.Run(fmt.Sprintf("followed=%v", followed), func(b *testing.B) {
			m, err := New(prometheus.NewRegistry(), Options{})
			testenv.NoError(b, err)
			t := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
			for i := range 10000 {
				t.UpdateService(service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", i/200, 1+i%200)))
			}
			t.Synced()
			s, err := t.Next(b.Context(), proxy.Snapshot{})
			testenv.NoError(b, err)
			changed := [2]string{"10.97.0.1", "10.97.0.2"}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				t.UpdateService(service("s5000", changed[i%2]))
				if s, err = t.Next(b.Context(), s); err != nil {
					b.Fatal(err)
				}
				if followed {
					account := proxy.Sync{Snapshot: s, Applied: s, Start: time.Now(), Operations: 4}
					m.started(account)
					m.synced(account)
				}
			}
		})
	}
}
