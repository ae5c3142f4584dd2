package etcdstore_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	ttl      = 2 * time.Second
	victims  = 3
	crashes  = 12
	patience = time.Minute
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openPool(t *testing.T, client *clientv3.Client) (*etcdstore.Store, *allocator.Pool) {
	t.Helper()
	contested := allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/28")}
	s := etcdstore.New(client, prefix)
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{contested}, TTL: ttl})
	testenv.NoError(t, err)
	return s, p
}

// victim is a process that allocates and frees keys until it crashes: its requests end without a
// reply, and it makes no more.
type victim struct {
	name   string
	owners *storetest.Owners
	crash  context.CancelFunc
	all    sync.WaitGroup
	mu     sync.Mutex
	held   []allocator.Claim // bound when it crashed
}

func startVictim(t *testing.T, url, name string, owners *storetest.Owners) *victim {
	t.Helper()
	_, p := openPool(t, connect(t, url))
	ctx, cancel := context.WithCancel(t.Context())
	v := &victim{name: name, owners: owners, crash: cancel}
	v.all.Go(func() { p.Run(ctx) })
	for worker := range 4 {
		v.all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				v.live(ctx, p, allocator.Owner(fmt.Sprintf("%s/%d/%d", name, worker, i)))
			}
		})
	}
	return v
}

// live reserves, binds and releases a key of one owner. It ends at the first error; the test
// releases the keys that this leaves when the victim has crashed.
func (v *victim) live(process context.Context, p *allocator.Pool, owner allocator.Owner) {
	ctx, cancel := context.WithTimeout(process, 5*time.Second)
	defer cancel()
	claims, err := p.Reserve(ctx, owner, allocator.Request{Kind: allocator.IPv4})
	if err == nil {
		claims, err = p.Bind(ctx, claims...)
	}
	if err != nil {
		return
	}
	v.owners.Bound(claims)
	select {
	case <-process.Done():
		v.mu.Lock()
		defer v.mu.Unlock()
		v.held = append(v.held, claims...)
	case <-time.After(5 * time.Millisecond):
		v.owners.Released(claims)
		_ = p.Release(ctx, claims...) // See above.
	}
}

// checkCrashed crashes a victim, checks that the store has the keys that it had bound, and frees
// its claims.
func (v *victim) checkCrashed(t *testing.T, s *etcdstore.Store, p *allocator.Pool) {
	t.Helper()
	v.crash()
	v.all.Wait()
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	stored := map[allocator.Claim]bool{}
	for _, c := range state.Claims {
		stored[c] = true
	}
	for _, c := range v.held {
		if !stored[c] {
			t.Errorf("claim of %v: got none, want the one that %s has bound: %+v", c.Key, v.name, c)
		}
	}
	v.owners.Released(v.held)
	for c := range stored {
		if c.IsBound() && strings.HasPrefix(string(c.Owner), v.name+"/") {
			testenv.NoError(t, p.Release(t.Context(), c))
		}
	}
}

// TestCrashes has processes that share a store and crash, and restarts etcd. No key may have two
// owners, and no claim may be left when all have crashed.
func TestCrashes(t *testing.T) {
	rnd, owners := testenv.Random(t), storetest.NewOwners(t)
	etcd := servertest.StartEtcd(t)
	s, p := openPool(t, connect(t, etcd.URL))
	testenv.NoError(t, s.Create(t.Context()))
	var running []*victim
	for i := range victims + crashes {
		if len(running) == victims {
			time.Sleep(time.Duration(50+rnd.IntN(300)) * time.Millisecond)
			if i%5 == 4 {
				etcd.Restart()
			}
			at := rnd.IntN(victims)
			running[at].checkCrashed(t, s, p)
			running = append(running[:at], running[at+1:]...)
		}
		running = append(running, startVictim(t, etcd.URL, fmt.Sprint("victim-", i), owners))
	}
	for _, v := range running {
		v.checkCrashed(t, s, p)
	}
	owners.WantBindings(30)
	awaitNoClaims(t, s, p)
}

// awaitNoClaims waits until the reservations of victims have ended. etcd can bind a key after its
// victim has crashed, if the request was in flight. A repair would free it;
// awaitNoClaims does that itself.
func awaitNoClaims(t *testing.T, s *etcdstore.Store, p *allocator.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(running) })
	defer wg.Wait()
	defer stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		state, err := s.Load(ctx)
		testenv.NoError(t, err)
		if len(state.Claims) == 0 {
			return
		}
		for _, c := range state.Claims {
			if !c.IsBound() {
				continue
			}
			t.Logf("%v was bound for %s, which has crashed", c.Key, c.Owner)
			testenv.NoError(t, p.Release(ctx, c))
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("claims after %v: got %v, want none", patience, state.Claims)
		}
	}
}
