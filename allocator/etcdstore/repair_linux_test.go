package etcdstore_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testNewRange adds a range to a store. The repair that makes its map must repair the other
// map, too.
func testNewRange(t *testing.T, client *clientv3.Client) {
	addresses, ports := ranges()[0], ranges()[2]
	testenv.NoError(t, newStore(t, client, addresses).Create(t.Context()))
	s := newStore(t, client, addresses, ports)
	list := func(context.Context) ([]repair.Use, error) {
		return []repair.Use{{Owner: "web", Text: storetest.Key(1).String()}, {Owner: "web", Text: "30000"}}, nil
	}
	findings, err := repair.Reconcile(t.Context(), s, list, repair.Options{Ranges: ranges()})
	if err != nil || len(findings) != 2 || !findings[0].Mended || !findings[1].Mended {
		t.Errorf("got findings %v, error %v, want two that are mended", findings, err)
	}
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != 2 {
		t.Errorf("got claims %v, error %v, want both", state.Claims, err)
	}
}
