package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/internal/ipaddr"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/pause"
)

// A TCP endpoint that a Service has no more keeps its open connections: its real server gets
// weight 0, and goes when they have ended or the time is over. The time stands in the kernel, as
// the upper threshold of connections, which has no effect at weight 0: so it outlives the
// process, and tells these real servers from others of weight 0.

// drainInterval is how often the connections of draining real servers are counted, drainBatch
// of how many virtual servers at most: each one costs a list of its real servers.
const (
	drainInterval = time.Second
	drainBatch    = 200
)

// drains reports whether a removed real server keeps its connections.
func (t *target) drains(removed *op) bool {
	return t.drainer.timeout > 0 && removed.Key.protocol == ipaddr.TCP && !removed.Value.atOnce
}

// uptime returns the seconds since the node was started, which go on while it sleeps.
func uptime() uint32 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0 // cannot happen: the clock exists since Linux 2.6.39
	}
	return uint32(now.Sec)
}

// deadline returns the second of uptime at which draining that begins now ends.
func (t *target) deadline() uint32 { return uptime() + max(1, uint32(t.drainer.timeout/time.Second)) }

// drainer removes real servers of weight 0 when their connections have ended.
type drainer struct {
	// timeout is how long a real server without new connections stays.
	timeout time.Duration
	// services says that whole Services drain too.
	services bool
	of       draining
	retained retained
	// round are the virtual servers that still wait for their turn: without it, some of many could
	// wait for ever.
	round []ipvs.ServiceKey
	// stop ends the goroutine that counts connections; nil if it does not run.
	stop    context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

// draining are real servers of weight 0, by their virtual server.
type draining map[ipvs.ServiceKey]map[key]bool

func (d draining) has(server ipvs.ServiceKey, k key) bool { return d[server][k] }

func (d draining) add(server ipvs.ServiceKey, k key) {
	if d[server] == nil {
		d[server] = map[key]bool{}
	}
	d[server][k] = true
}

func (d draining) remove(server ipvs.ServiceKey, k key) {
	delete(d[server], k)
	if len(d[server]) == 0 {
		delete(d, server)
	}
}

// startDraining starts the goroutine that removes draining real servers, unless it runs. It
// requires t.mu.
func (t *target) startDraining() {
	if t.drainer.closed || t.drainer.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	t.drainer.stop = stop
	t.drainer.running.Go(func() {
		for pause.For(ctx, drainInterval) == nil && !t.drainOnce(ctx) {
		}
	})
}

// drainOnce removes real servers whose connections have ended or whose time is over, and
// returns true if none is left. What cannot be read or removed now is tried again.
func (t *target) drainOnce(ctx context.Context) (done bool) {
	t.mu.Lock()
	batch := t.drainer.nextBatch(drainBatch)
	t.mu.Unlock()
	if err := t.drainServers(ctx, batch); err != nil && !errors.Is(err, ipvs.ErrMissing) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if done = len(t.drainer.of)+len(t.drainer.retained.servers) == 0; done && t.drainer.stop != nil {
		t.drainer.stop()
		t.drainer.stop = nil
	}
	return done
}

// drainServers does that for some virtual servers, also after one that fails. Without ip_vs there are no
// virtual servers, and each call would start modprobe: it ends, and nothing drains any more.
func (t *target) drainServers(ctx context.Context, servers []ipvs.ServiceKey) error {
	var errs []error
	for _, server := range servers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := t.drainServer(ctx, server); err != nil {
			errs = append(errs, err)
			if errors.Is(err, ipvs.ErrMissing) {
				errs = append(errs, t.forgetDraining(ctx))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// drainServer does that for the real servers of one virtual server. If it is retained, it goes
// with the last one.
func (t *target) drainServer(ctx context.Context, server ipvs.ServiceKey) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, isRetained := t.drainer.retained.servers[server]
	if !isRetained && len(t.drainer.of[server]) == 0 {
		return nil
	}
	states, err := t.kernel.Destinations(server)
	if err != nil {
		return err
	}
	now := uptime()
	if isRetained {
		switch drain, over := countStates(states, now); {
		case drain < len(states): // it serves, which the next listing finds
			t.drainer.retained.remove(server)
		case over == len(states):
			return t.endServer(ctx, server, &k)
		}
	}
	var list []ipvs.Op
	var over []key // of list
	for k := range t.drainer.of[server] {
		switch drains, isOver := stateOf(states, k.real, now); {
		case isOver:
			list, over = append(list, ipvs.DelDestination(server, k.real)), append(over, k)
		case !drains:
			t.drainer.of.remove(server, k)
		}
	}
	failed, err := t.kernel.Do(ctx, list)
	if err != nil {
		return err
	}
	for _, f := range slices.Backward(failed) {
		over = slices.Delete(over, f.Index, f.Index+1)
	}
	for i := range over {
		t.drainer.of.remove(server, over[i])
	}
	return nil
}

// forgetDraining takes note that all virtual servers are gone. What only retained ones needed goes too;
// what of that cannot be removed is no longer left out of the next listing.
func (t *target) forgetDraining(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainer.of = draining{}
	var needless []op
	for server, k := range t.drainer.retained.servers {
		t.drainer.retained.remove(server)
		needless = append(needless, t.releaseCompanions(&k)...)
	}
	_, err := t.commit(ctx, needless)
	return err
}

// endServer removes a retained virtual server, and what only it needed. What of that cannot be
// removed is no longer left out of the next listing.
func (t *target) endServer(ctx context.Context, server ipvs.ServiceKey, k *key) error {
	failed, err := t.kernel.Do(ctx, []ipvs.Op{ipvs.DelService(server)})
	switch {
	case err != nil:
		return err
	case len(failed) > 0 && !errors.Is(&failed[0], unix.ESRCH): // another program has removed it
		return &failed[0]
	}
	delete(t.drainer.of, server)
	t.drainer.retained.remove(server)
	_, err = t.commit(ctx, t.releaseCompanions(k))
	return err
}

// stateOf reports whether a real server still drains, and whether that is over.
func stateOf(states []ipvs.DestinationState, real netip.AddrPort, now uint32) (drains, over bool) {
	for i := range states {
		if s := &states[i]; s.Addr == real {
			return isDraining(s), isOver(s, now)
		}
	}
	return false, false
}

// countStates returns how many real servers drain, and for how many of them that is over.
func countStates(states []ipvs.DestinationState, now uint32) (drain, over int) {
	for i := range states {
		if s := &states[i]; isDraining(s) {
			drain++
			if isOver(s, now) {
				over++
			}
		}
	}
	return drain, over
}

func isDraining(s *ipvs.DestinationState) bool { return s.Weight == 0 && s.Upper != 0 }

// isOver reports whether a real server drains and has no connections, or its time has passed.
func isOver(s *ipvs.DestinationState, now uint32) bool {
	return isDraining(s) && (s.Active+s.Inactive == 0 || s.Upper <= now)
}
