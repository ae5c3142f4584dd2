package addresses

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// lately is a manager that remembers the addresses of the host for some time: each datagram that might
// come from a node port asks for them, and listing them takes long.
type lately struct {
	Manager

	mu  sync.Mutex
	all map[netip.Addr]bool
	at  time.Time // when they were listed; the zero Time if they must be listed again
}

// latelyLimit is how long the addresses are remembered if the backend changes none.
const latelyLimit = 5 * time.Second

// Addresses implements [Manager].
func (l *lately) Addresses(ctx context.Context) ([]netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list(ctx)
}

func (l *lately) list(ctx context.Context) ([]netip.Addr, error) {
	list, err := l.Manager.Addresses(ctx)
	l.at = time.Now() // also after an error: datagrams must not have it repeated
	if err == nil {
		l.all = setOf(list)
	}
	return list, err
}

// Add implements [Manager].
func (l *lately) Add(ctx context.Context, a netip.Addr) error {
	defer l.forget()
	return l.Manager.Add(ctx, a)
}

// Remove implements [Manager].
func (l *lately) Remove(ctx context.Context, a netip.Addr) error {
	defer l.forget()
	return l.Manager.Remove(ctx, a)
}

func (l *lately) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = time.Time{}
}

// isLocal reports whether an address is one of the node's own.
func (l *lately) isLocal(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() || time.Since(l.at) >= latelyLimit {
		_, _ = l.list(context.Background()) // after an error, the former ones count
	}
	return l.all[a]
}

func setOf(list []netip.Addr) map[netip.Addr]bool {
	all := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		all[a.Unmap().WithZone("")] = true
	}
	return all
}
