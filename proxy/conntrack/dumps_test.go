package conntrack

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func mustFollow(t *testing.T, c *Cleaner, held proxy.Snapshot, full bool) {
	t.Helper()
	testenv.NoError(t, c.Follow(t.Context(), held, full))
}

// When a Service is removed after its last endpoint, there is nothing to look for, since its flows
// were removed with that endpoint. With an endpoint that drains there may be flows.
func TestRemovedAfterItsEndpoints(t *testing.T) {
	t.Parallel()
	none := proxy.NewSnapshot(node())
	empty := port("dns", v1.ProtocolUDP, list(vip, vip2), nil)
	for name, tc := range map[string]struct {
		last  *proxy.ServicePort
		full  bool
		dumps int
	}{
		"no endpoint":                            {empty, false, 0},
		"no endpoint, dataplane may have lost":   {empty, true, 1},
		"an endpoint drains":                     {draining(port("dns", v1.ProtocolUDP, list(vip, vip2), nil), a), false, 1},
		"endpoint":                               {port("dns", v1.ProtocolUDP, list(vip, vip2), list(a)), false, 1},
		"a frontend less, and still no endpoint": {port("ntp", v1.ProtocolUDP, list(vip), nil), false, 0},
	} {
		table := &fakeTable{}
		c := newCleaner(Options{}, table)
		mustFollow(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(a, b))), true)
		mustFollow(t, c, proxy.NewSnapshot(node(), tc.last), false)
		table.dumps = 0
		mustFollow(t, c, none, tc.full)
		if table.dumps != tc.dumps {
			t.Errorf("%s: got %d dumps, want %d", name, table.dumps, tc.dumps)
		}
	}
}

// After a dataplane that may have held something else, flows to a removed frontend are removed
// although it had no endpoint; and so are flows that were offloaded, once they are not.
func TestRemovedButUnsure(t *testing.T) {
	t.Parallel()
	empty := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), nil))
	t.Run("lost", func(t *testing.T) {
		table := &fakeTable{}
		c := newCleaner(Options{}, table)
		mustFollow(t, c, empty, true)
		table.flows = []flow{to(protoUDP, vip, a)}
		mustFollow(t, c, proxy.NewSnapshot(node()), true)
		wantFlows(t, table)
	})
	t.Run("offloaded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			table := &fakeTable{flows: []flow{to(protoUDP, vip, a)}, err: errOffloaded}
			c := newCleaner(Options{}, table)
			mustFollow(t, c, empty, true)
			table.err = nil
			time.Sleep(retryTime / 2)
			mustFollow(t, c, proxy.NewSnapshot(node()), false)
			wantFlows(t, table)
		})
	})
	t.Run("failed", func(t *testing.T) {
		broken := errors.New("broken")
		table := &fakeTable{}
		c := newCleaner(Options{}, table)
		mustFollow(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))), true)
		table.flows, table.err = []flow{to(protoUDP, vip, a)}, broken
		if err := c.Follow(t.Context(), empty, false); !errors.Is(err, broken) {
			t.Errorf("got error %v, want %v", err, broken)
		}
		table.err = nil
		mustFollow(t, c, proxy.NewSnapshot(node()), false)
		wantFlows(t, table)
	})
}
