package proxy

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// portsOf returns the ports of a Service and of its EndpointSlice.
func portsOf(n int) (edit, []discoveryv1.EndpointPort) {
	texts := objects.Many(n, func(i int) string { return fmt.Sprintf("p%d %d", i, 1+i) })
	return objects.Ports(texts...), objects.SlicePorts(texts...)
}

func manyAddrs(n int) []string {
	return objects.Many(n, func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 1+i/62500, i/250%250, 1+i%250) })
}

// TestGrowth: the time that a tracker needs does not grow with the square of what a user can
// write.
func TestGrowth(t *testing.T) {
	for _, tc := range []struct {
		name string
		from int
		do   func(n int)
	}{
		{"ports", 1000, func(n int) {
			tr := newTestTracker()
			inService, inSlice := portsOf(n)
			tr.UpdateService(apiService("web", "10.96.0.1", inService))
			s := apiSlice("web-1", "web", "10.1.0.1")
			s.Ports = inSlice
			tr.UpdateEndpointSlice(s)
			newest(t, tr)
		}},
		{"EndpointSlices of a Service", 500, func(n int) {
			const portCount = 20
			inService, inSlice := portsOf(portCount)
			tr := newTestTracker()
			tr.UpdateService(apiService("web", "10.96.0.1", inService))
			for i, addr := range manyAddrs(n) {
				s := apiSlice(fmt.Sprint("web-", i), "web", addr)
				s.Ports = inSlice
				tr.UpdateEndpointSlice(s)
			}
			newest(t, tr)
			for i := range n {
				tr.DeleteEndpointSlice(objectName(fmt.Sprint("web-", i)))
			}
		}},
		{"source ranges", 4000, func(n int) {
			var ranges []string
			for _, addr := range manyAddrs(n) {
				ranges = append(ranges, addr+"/32")
			}
			tr := newTestTracker()
			tr.UpdateService(apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1"), objects.SourceRanges(ranges...)))
			newest(t, tr)
		}},
		{"labels and annotations", 2000, func(n int) {
			many := make(map[string]string, n)
			for i := range n {
				many[fmt.Sprint("example.com/", i)] = "x"
			}
			tr := newTestTracker()
			s := apiService("web", "10.96.0.1")
			s.Labels, s.Annotations = many, many
			tr.UpdateService(s)
			slice := apiSlice("web-1", "web", "10.1.0.1")
			slice.Annotations = many
			tr.UpdateEndpointSlice(slice)
			newest(t, tr)
		}},
		{"Services with one address", 400, func(n int) {
			tr := newTestTracker()
			for i := range n {
				tr.UpdateService(apiService(fmt.Sprint("web-", i), "10.96.0.1"))
			}
			newest(t, tr)
			for i := range n { // the owner each time
				tr.DeleteService(objectName(fmt.Sprint("web-", i)))
				newest(t, tr)
			}
		}},
		{"Services with the same addresses", 50, func(n int) {
			shared := objects.ExternalIPs(manyAddrs(200)...)
			tr := newTestTracker()
			for i, addr := range manyAddrs(n) {
				tr.UpdateService(apiService(fmt.Sprint("web-", i), addr, shared))
			}
			newest(t, tr)
			for i := range n {
				tr.DeleteService(objectName(fmt.Sprint("web-", i)))
				newest(t, tr)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testenv.Growth(t, tc.from, func(n int) func() { return func() { tc.do(n) } })
		})
	}
}
