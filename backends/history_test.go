package backends_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// history is a small set of service ports that changes at random. Every frontend belongs
// to one service port at a time.
type history struct {
	random *rand.Rand
	node   *proxy.Node
	ports  []*proxy.ServicePort
	owners []int // of frontends: an index of ports, or -1
}

func newHistory(r *rand.Rand) *history {
	const ports = 8
	h := &history{random: r, node: &proxy.Node{Zone: "a"}, ports: make([]*proxy.ServicePort, ports), owners: make([]int, 2*ports)}
	for i := range h.owners {
		h.owners[i] = -1
	}
	return h
}

func portName(i int) proxy.ServicePortName { return snapshots.Name(fmt.Sprintf("port-%02d", i)) }

func frontendAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
}

func endpointAddr(i int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), port)
}

// step changes a few ports, moves frontends between them, and seldom changes
// the node.
func (h *history) step() {
	for range 1 + h.random.IntN(3) {
		switch i := h.random.IntN(len(h.ports)); h.random.IntN(8) {
		case 0:
			h.ports[i] = nil
		case 1, 2:
			h.owners[h.random.IntN(len(h.owners))] = h.random.IntN(len(h.ports))
		default:
			h.ports[i] = &proxy.ServicePort{Name: portName(i), Cluster: h.endpoints()}
		}
	}
	if h.random.IntN(20) == 0 {
		h.node = &proxy.Node{Zone: string(rune('a' + h.random.IntN(3)))}
	}
}

func (h *history) endpoints() (out []*endpoints.Endpoint) {
	for i := range 12 {
		if h.random.IntN(4) == 0 {
			out = append(out, &endpoints.Endpoint{Addr: endpointAddr(i, 8080)})
		}
	}
	if h.random.IntN(6) == 0 {
		out = append(out, &endpoints.Endpoint{Addr: endpointAddr(12, poisonPort)})
	}
	return out
}

// snapshot returns the current ports. A port that did not change stays the same value.
func (h *history) snapshot() proxy.Snapshot {
	var all []*proxy.ServicePort
	for i, p := range h.ports {
		if p == nil {
			continue
		}
		var frontends []proxy.Frontend
		for f, owner := range h.owners {
			if owner == i {
				frontends = append(frontends, proxy.Frontend{Addr: frontendAddr(f)})
			}
		}
		if !slices.EqualFunc(frontends, p.Frontends, proxy.Frontend.Equal) {
			changed := *p
			changed.Frontends = frontends
			p, h.ports[i] = &changed, &changed
		}
		all = append(all, p)
	}
	return proxy.NewSnapshot(h.node, all...)
}

// poisonedPorts names the ports of a snapshot that a poisoned kernel refuses.
func poisonedPorts(s proxy.Snapshot) []string {
	var names []string
	for p := range s.All() {
		for _, o := range objectsOf(s.Node(), p) {
			if poisonous(o.Key) {
				names = append(names, p.Name.String())
				break
			}
		}
	}
	return names
}

func failedPorts(err error) []string {
	var names []string
	for _, n := range failedNames(err) {
		names = append(names, n.String())
	}
	return names
}

func failedNames(err error) []proxy.ServicePortName {
	failed, _ := errors.AsType[proxy.PortErrors](err)
	return slices.SortedFunc(maps.Keys(failed), proxy.ServicePortName.Compare)
}
