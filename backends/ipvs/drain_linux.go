package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/pause"
)

// A TCP endpoint that a Service has no more keeps its open connections: its real server gets
// weight 0, and goes when they have ended or the time is over. The time stands in the kernel, as
// the upper threshold of connections, which has no effect at weight 0: so it outlives the
// process, and tells these real servers from others of weight 0.

// drainInterval is how often the connections of draining real servers are counted.
const drainInterval = time.Second

// drains reports whether an operation removes a real server that keeps its connections.
func (t *target) drains(o *op) bool {
	return o.Kind == backends.Remove && o.Key.kind == kindDestination && t.drainer.timeout > 0 && o.Key.protocol == ipaddr.TCP && !o.Value.atOnce
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
	// stop ends the goroutine that counts connections; nil if it does not run.
	stop    context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

// draining are real servers of weight 0, by their virtual server.
type draining map[key]map[key]bool

func (d draining) add(server, k key) {
	if d[server] == nil {
		d[server] = map[key]bool{}
	}
	d[server][k] = true
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
		for wait := drainInterval; pause.For(ctx, wait) == nil; {
			start := time.Now()
			if t.drain(ctx) {
				return
			}
			wait = drainPause(time.Since(start))
		}
	})
}

// drainPause returns the pause after a count that took some time: counting many virtual servers, each of which costs a
// list of its real servers, must not take a whole processor.
func drainPause(took time.Duration) time.Duration { return max(drainInterval, 10*took) }

// drain removes real servers whose connections have ended or whose time is over, and
// returns true if none is left. What cannot be read or removed now is tried again. Without ip_vs there are no
// virtual servers, and each call would start modprobe: then nothing drains any more.
func (t *target) drain(ctx context.Context) (done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, server := range slices.Collect(maps.Keys(t.drainer.of)) {
		if ctx.Err() != nil {
			return false
		}
		if errors.Is(t.drainServer(server), ipvs.ErrMissing) {
			t.drainer.of = draining{}
		}
		t.mu.Unlock() // others may be waiting
		t.mu.Lock()
	}
	if done = len(t.drainer.of) == 0; done {
		t.drainer.stop()
		t.drainer.stop = nil
	}
	return done
}

// drainServer does that for the real servers of one virtual server. It requires t.mu.
func (t *target) drainServer(server key) error {
	all := t.drainer.of[server]
	at := t.marks.server(&server)
	states, err := t.kernel.Destinations(at)
	if err != nil {
		return err
	}
	now := uptime()
	for k := range all {
		drains, isOver := stateOf(states, k.real, now)
		if isOver {
			if failed := t.kernel.Do(ipvs.Op{Verb: ipvs.Remove, Key: at, Destination: ipvs.Destination{Addr: k.real}}); failed != nil {
				err = errors.Join(err, failed)
				continue
			}
		}
		if isOver || !drains {
			delete(all, k)
		}
	}
	if len(all) == 0 {
		delete(t.drainer.of, server)
	}
	return err
}

// stateOf reports whether a real server still drains, and whether that is over.
func stateOf(states []ipvs.Destination, real netip.AddrPort, now uint32) (drains, over bool) {
	for i := range states {
		if s := &states[i]; s.Addr == real {
			return isDraining(s), isOver(s, now)
		}
	}
	return false, false
}

func isDraining(s *ipvs.Destination) bool { return s.Weight == 0 && s.Upper != 0 }

// isOver reports whether a real server drains and has no connections, or its time has passed.
func isOver(s *ipvs.Destination, now uint32) bool {
	return isDraining(s) && (s.Connections == 0 || s.Upper <= now)
}
