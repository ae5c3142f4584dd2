package storm

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

// traffic makes connections. Its methods may be called from any goroutine.
type traffic struct {
	lab  *lab.Lab
	made map[cluster.Name]*atomic.Uint64 // connections of each client
}

func newTraffic(w *world) *traffic {
	tr := &traffic{lab: w.lab, made: map[cluster.Name]*atomic.Uint64{}}
	for _, c := range allClients() {
		tr.made[c] = &atomic.Uint64{}
	}
	return tr
}

// Each connection of a client comes from another address or port, until all have been used.
// The ports are neither those that backends/userspace uses nor node ports.
const (
	sourceAddrs = 50
	firstPort   = 33_000
	sourcePorts = 28_000
)

// source returns the source of the next connection. The kernel chooses the address of the node.
func (tr *traffic) source(f flight) netip.AddrPort {
	n := tr.made[f.from].Add(1)
	if f.source.IsValid() || f.from == cluster.Node {
		return netip.AddrPortFrom(f.source, uint16(firstPort+n%sourcePorts))
	}
	return netip.AddrPortFrom(cluster.Nth(f.crowd(), int(1+n%sourceAddrs)), uint16(firstPort+n/sourceAddrs%sourcePorts))
}

// try makes a connection, and waits for the answer of the server or the end of the context. With UDP it sends
// the request again every second.
func (tr *traffic) try(ctx context.Context, f flight, patience time.Duration) (got outcome) {
	source := tr.source(f)
	var flow *lab.Flow
	got.notTried = tr.lab.NS(string(f.from)).Do(func() (err error) {
		flow, err = lab.OpenFlow(f.protocol, source, f.to, source.Port)
		return err
	})
	if got.notTried != nil {
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
