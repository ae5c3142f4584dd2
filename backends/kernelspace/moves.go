package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// moves are the endpoints that were made again because their pods are on other nodes, by address. EndpointSlices of
// several Services may name different nodes for one address, and each list finds one of them. So the pauses
// grow in which such an endpoint is not made again: load balancers leave it out meanwhile.
type moves map[netip.Addr]move

// move is how often an endpoint was made again, and when it was last. A try that failed counts.
type move struct {
	times int
	at    time.Time
}

// may reports whether the endpoint of an address may be made again; the first pause is a given one.
func (m moves) may(a netip.Addr, first time.Duration) bool {
	have, found := m[a]
	return !found || time.Since(have.at) >= first<<min(have.times-1, 10)
}

func (m moves) note(a netip.Addr) { m[a] = move{m[a].times + 1, time.Now()} }

// errPaused marks an endpoint that is made again after a pause.
var errPaused = errors.New("it is made again after a pause")

// move makes the endpoint of a pod that is on another node now again, unless that was tried a short time ago. If it
// was tried before, the next list shows whether EndpointSlices agree now.
func (t *target) move(ctx context.Context, k key, v *value, with payload) error {
	a := k.addr.Addr()
	have, _ := parseName(t.mirror.endpoints[t.mirror.made[a]].Name, t.prefix)
	paused := fmt.Errorf("%w: EndpointSlices have named the nodes %q and %q for it", errPaused, have.node, v.node)
	if !t.moves.may(a, t.options.ListInterval) {
		t.leave(k, paused)
		return nil
	}
	isFirst := t.moves[a].times == 0
	t.moves.note(a) // load balancers leave it out for some time, also if this fails
	err := t.refresh(ctx, k, v, with)
	if err == nil && !isFirst {
		t.leave(k, paused)
	}
	return err
}
