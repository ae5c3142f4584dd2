package allocator

import (
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestExpireReadsAgain has a pool whose view is outdated: it has a reservation that has
// ended, but the owner has bound it meanwhile. expire must not free it.
func TestExpireReadsAgain(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	store := NewMemory(State{}, nil)
	o := PoolOptions{Ranges: []Config{{FirstPort: 30000, LastPort: 30009}}, Now: func() time.Time { return now }}
	owners, err1 := NewPool(store, o)
	others, err2 := NewPool(store, o)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	claims, err := owners.Reserve(t.Context(), "me", Request{Kind: Port}, Request{Kind: Port})
	testenv.NoError(t, err)
	testenv.NoError(t, others.Sync(t.Context()))
	now = now.Add(DefaultTTL)
	if _, err := owners.Bind(t.Context(), claims[0]); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, others.expire(t.Context()))
	state, err := store.Load(t.Context())
	if err != nil || len(state.Claims) != 1 || state.Claims[0].Key != claims[0].Key {
		t.Errorf("got %v, error %v, want only %v, which is bound", state.Claims, err, claims[0].Key)
	}
}
