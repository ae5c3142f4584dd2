package conntrack

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// left returns service ports as backends.Finder does.
func left(proto v1.Protocol, fronts ...string) []*proxy.ServicePort {
	return []*proxy.ServicePort{port("", proto, fronts, nil)}
}

// Flows to frontends that an earlier process has left, and that are not held, are removed, also
// if the first cleaning fails. Flows of other programs stay.
func TestFoundFrontends(t *testing.T) {
	t.Parallel()
	const external = "203.0.113.9:53"
	broken := errors.New("broken")
	held := proxy.NewSnapshot(node("192.0.2.1/32"), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	kept := []flow{
		to(protoUDP, vip, a), to(protoUDP, "203.0.113.10:53", x), to(protoSCTP, external, x), to(protoUDP, external, external),
		to(protoUDP, "192.0.2.9:30053", x),
	}
	stale := []flow{to(protoUDP, vip, x), to(protoUDP, external, x), to(protoUDP, "192.0.2.1:30053", x), to(protoSCTP, "203.0.113.11:7", x)}
	table := &fakeTable{flows: slices.Concat(stale, kept), deaf: true, err: broken}
	c := newCleaner(Options{}, table)
	c.Find(append(left(v1.ProtocolUDP, vip, external, ":30053"), left(v1.ProtocolSCTP, "203.0.113.11:7")...))
	if err := c.Follow(t.Context(), held, true); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
	c.Find(left(v1.ProtocolUDP, vip)) // The next full Apply finds what is held.
	table.err = nil
	mustFollow(t, c, held, true)
	wantFlows(t, table, kept...)

	table.flows = append(table.flows, to(protoUDP, external, x)) // by another program
	mustFollow(t, c, held, true)
	wantFlows(t, table, append(kept, to(protoUDP, external, x))...)
}

// The same frontend in another Service is held.
func TestFoundFrontendOfAnotherService(t *testing.T) {
	t.Parallel()
	flows := []flow{to(protoUDP, vip2, a)}
	table := &fakeTable{flows: slices.Clone(flows)}
	c := newCleaner(Options{}, table)
	c.Find(left(v1.ProtocolUDP, vip2))
	n := node()
	n.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	mustFollow(t, c, proxy.NewSnapshot(n, port("other", v1.ProtocolUDP, list(vip2), list(a))), true)
	wantFlows(t, table, flows...)
}
