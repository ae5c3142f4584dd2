//go:build ipvs

package ipvsmode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// destinations are frontends of all kinds, and ports beside them.
func destinations() []string {
	return []string{
		"10.96.0.1:80", "10.96.0.1:81", "10.96.0.2:80", "10.96.0.6:80", "10.96.0.7:80", "10.96.0.9:80",
		nodeIP + ":30080", nodeIP + ":30081", nodeIP + ":30083", gatewayIP + ":30080",
		"203.0.113.1:80", "203.0.113.1:81", "203.0.113.2:80", "203.0.113.3:80", "203.0.113.4:80", "203.0.113.5:80", "203.0.113.6:80",
		"[fd00:96::1]:80", "[" + nodeIP6 + "]:30082", "[2001:db8:1::1]:80", "[2001:db8:1::2]:80",
	}
}

// exceptions are connections that kube-proxy's mode ipvs treats in another way, and why.
func exceptions() map[string]string {
	const (
		primary  = "node ports answer at the primary addresses of the node by default, and not at all of them"
		drops    = "policy Local drops without an endpoint on this node; kube-proxy's mode ipvs refuses, and its other modes drop"
		fallback = "policy Local drops without an endpoint on this node; kube-proxy's mode ipvs uses all endpoints"
		inside   = "externalTrafficPolicy is for connections from outside: those from inside may use all endpoints, from an address that gets replies"
	)
	return map[string]string{
		"client to 10.244.0.1:30080": primary,
		"node to 10.244.0.1:30080":   primary,
		"pod to 10.244.0.1:30080":    primary,
		"client to 10.96.0.9:80":     drops,
		"node to 10.96.0.9:80":       drops,
		"pod to 10.96.0.9:80":        drops,
		"client to 192.0.2.1:30083":  fallback,
		"client to 203.0.113.5:80":   fallback,
		"node to 192.0.2.1:30081":    inside,
		"node to 192.0.2.1:30083":    inside,
		"node to 203.0.113.3:80":     inside,
		"node to 203.0.113.5:80":     inside,
		"pod to 192.0.2.1:30081":     inside,
		"pod to 203.0.113.3:80":      inside,
	}
}

// TestDecisions connects to all destinations from outside, from the node and from a pod, with
// kube-proxy and with the backend: both must reach the same endpoints, from the same addresses,
// or refuse or drop the same.
func TestDecisions(t *testing.T) {
	theirs := newWorld(t)
	runKubeProxy(t, theirs.node)
	ours := newWorld(t)
	start(t, ours.node, func() (proxy.Backend, error) { return ipvs.New(ipvs.Options{}) })
	want, got := theirs.decide(t.Context()), ours.decide(t.Context())
	for _, c := range slices.Sorted(maps.Keys(want)) {
		why, excepted := exceptions()[c]
		switch {
		case want[c] != got[c] && !excepted:
			t.Errorf("%s: got %s, want %s as kube-proxy", c, got[c], want[c])
		case want[c] == got[c] && excepted:
			t.Errorf("%s: got %s as kube-proxy, want another result: %s", c, got[c], why)
		}
	}
}

// decide returns the results of connections, by their names.
func (w *world) decide(ctx context.Context) map[string]string {
	var mu sync.Mutex
	results := map[string]string{}
	var deciding sync.WaitGroup
	for _, to := range destinations() {
		deciding.Go(func() {
			// One after the other, so that round robin finds all endpoints.
			for name, from := range map[string]*netns.NS{"client": w.client, "node": w.node, "pod": w.pod} {
				result := connect(ctx, from, to)
				mu.Lock()
				results[name+" to "+to] = result
				mu.Unlock()
			}
		})
	}
	deciding.Wait()
	return results
}

// connect connects several times, and returns the different results.
func connect(ctx context.Context, from *netns.NS, to string) string {
	results := map[string]bool{}
	for range 4 {
		c, err := dial(ctx, from, "tcp", to)
		failure, some := errors.AsType[net.Error](err)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			return "refused"
		case some && failure.Timeout():
			return "dropped"
		case err != nil:
			return fmt.Sprint("error ", err)
		}
		results[c.first] = true
		_ = c.Close() // it has answered
	}
	return strings.Join(slices.Sorted(maps.Keys(results)), ", ")
}
