package storm

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

// traffic makes connections. Its methods may be called from any goroutine.
type traffic struct {
	stations map[client]*station
}

// station makes the connections of one client.
type station struct {
	from  client
	made  atomic.Uint64
	tasks chan func() // carried out on a thread that stays in the namespace
}

func newTraffic(t testing.TB, w *world) *traffic {
	t.Helper()
	tr := &traffic{stations: map[client]*station{}}
	var threads sync.WaitGroup
	for _, c := range allClients() {
		ns := w.node
		if leaf, _ := c.leaf(); leaf != "" {
			ns = w.lab.NS(leaf)
		}
		s := &station{from: c, tasks: make(chan func())}
		tr.stations[c] = s
		threads.Go(func() { s.runTasks(t, ns) })
	}
	t.Cleanup(func() {
		for _, s := range tr.stations {
			close(s.tasks)
		}
		threads.Wait()
	})
	return tr
}

func (s *station) runTasks(t testing.TB, ns *netns.NS) {
	err := ns.Do(func() error {
		for task := range s.tasks {
			task()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Each connection of a client comes from another address or port, until all have been used.
// The ports are neither those that backends/userspace uses nor node ports.
const (
	sourceAddrs = 50
	firstPort   = 33_000
	sourcePorts = 28_000
)

// source returns the source of the next connection. The kernel chooses the address of the node.
func (s *station) source(f flight) netip.AddrPort {
	n := s.made.Add(1)
	leaf, prefix := s.from.leaf()
	if f.source.IsValid() || leaf == "" {
		return netip.AddrPortFrom(f.source, uint16(firstPort+n%sourcePorts))
	}
	addr := nth(ofFamily(leaf, f.family(), prefix), int(1+n%sourceAddrs))
	return netip.AddrPortFrom(addr, uint16(firstPort+n/sourceAddrs%sourcePorts))
}

// try makes a connection, and waits for the answer of the server or the end of the context. With UDP it sends
// the request again every second.
func (tr *traffic) try(ctx context.Context, f flight, patience time.Duration) (got outcome) {
	s := tr.stations[f.from]
	source := s.source(f)
	made := make(chan error, 1)
	var flow *lab.Flow
	s.tasks <- func() {
		var err error
		flow, err = lab.OpenFlow(f.protocol, source, f.to, source.Port)
		made <- err
	}
	if got.notTried = <-made; got.notTried != nil {
		return got
	}
	defer flow.Close()
	got.source = flow.Source()
	flow.Patience = patience
	if f.protocol == v1.ProtocolUDP {
		flow.Patience = min(patience, time.Second)
	}
	end := time.Now().Add(patience)
	for got.Reply = flow.Ask(ctx); f.protocol == v1.ProtocolUDP && got.Outcome == lab.Silence && time.Now().Before(end) && ctx.Err() == nil; {
		got.Reply = flow.Ask(ctx)
	}
	if got.Outcome == lab.Silence {
		got.notTried = ctx.Err()
	}
	return got
}
