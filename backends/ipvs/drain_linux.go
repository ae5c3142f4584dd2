package ipvs

import (
	"context"
	"errors"
	"maps"
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
	of      draining
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

// nextBatch returns at most limit of the virtual servers with something that drains: each one once
// in a round, and those that began to drain meanwhile in the next round.
func (d *drainer) nextBatch(limit int) []ipvs.ServiceKey {
	if len(d.round) == 0 {
		d.round = slices.Collect(maps.Keys(d.of))
	}
	n := min(limit, len(d.round))
	batch := d.round[:n]
	d.round = d.round[n:]
	return batch
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
	if done = len(t.drainer.of) == 0; done && t.drainer.stop != nil {
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
				t.forgetDraining()
				break
			}
		}
	}
	return errors.Join(errs...)
}

// drainServer does that for the real servers of one virtual server.
func (t *target) drainServer(ctx context.Context, server ipvs.ServiceKey) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.drainer.of[server]) == 0 {
		return nil
	}
	states, err := t.kernel.Destinations(server)
	if err != nil {
		return err
	}
	now := uptime()
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

// forgetDraining takes note that all virtual servers are gone.
func (t *target) forgetDraining() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainer.of = draining{}
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

func isDraining(s *ipvs.DestinationState) bool { return s.Weight == 0 && s.Upper != 0 }

// isOver reports whether a real server drains and has no connections, or its time has passed.
func isOver(s *ipvs.DestinationState, now uint32) bool {
	return isDraining(s) && (s.Active+s.Inactive == 0 || s.Upper <= now)
}
