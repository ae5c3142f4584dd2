package etcdstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/servertest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// TestEtcdIsAway kills etcd while all keys are taken in the pool's view. Whether one is free is unknown
// then, and the error must not say that the range is full. With etcd again, it is.
func TestEtcdIsAway(t *testing.T) {
	etcd := servertest.StartEtcd(t)
	s, p, err := openPool(connect(t, etcd.URL))
	if err == nil {
		err = s.Create(t.Context())
	}
	testenv.NoError(t, err)
	one := allocator.Request{Kind: allocator.IPv4}
	all := one
	all.Count = 126
	if _, err := p.Allocate(t.Context(), "all", all); err != nil {
		t.Fatal(err)
	}
	etcd.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := p.Allocate(ctx, "late", one); err == nil || errors.Is(err, allocator.ErrFull) {
		t.Errorf("without etcd: got error %v, want one that is not %v", err, allocator.ErrFull)
	}
	etcd.Restart()
	if _, err := p.Allocate(t.Context(), "late", one); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("with etcd: got error %v, want %v", err, allocator.ErrFull)
	}
}
