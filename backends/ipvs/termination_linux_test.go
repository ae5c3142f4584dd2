package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// A removed real server of TCP keeps its connections; one that is added again while it drains
// gets its weight back.
func TestRequestsOfEndpoints(t *testing.T) {
	at := func(protocol uint8) key {
		return key{kind: kindDestination, protocol: protocol, addr: netip.MustParseAddrPort("10.96.0.1:80"), real: netip.MustParseAddrPort("10.0.0.1:8080")}
	}
	tcp, udp := at(ipaddr.TCP), at(ipaddr.UDP)
	request := func(v ipvs.Verb, k key, d ipvs.Destination) ipvs.Op {
		return ipvs.Op{Verb: v, Key: ipvs.ServiceKey{Protocol: k.protocol, Addr: k.addr}, Destination: d}
	}
	serves, gone := ipvs.Destination{Addr: tcp.real, Weight: 1}, ipvs.Destination{Addr: tcp.real}
	for _, c := range []struct {
		name    string
		op      op
		timeout time.Duration
		drains  bool // before
		want    ipvs.Op
	}{
		{"added", op{Kind: backends.Add, Key: tcp, Value: value{weight: 1}}, time.Minute, false, request(ipvs.Add, tcp, serves)},
		{"added while it drains", op{Kind: backends.Add, Key: tcp, Value: value{weight: 1}}, time.Minute, true, request(ipvs.Change, tcp, serves)},
		{"removed, of UDP", op{Kind: backends.Remove, Key: udp}, time.Minute, false, request(ipvs.Remove, udp, gone)},
		{"removed, without a time to drain", op{Kind: backends.Remove, Key: tcp}, 0, false, request(ipvs.Remove, tcp, gone)},
		{"removed at once", op{Kind: backends.Remove, Key: tcp, Value: value{atOnce: true}}, time.Minute, false, request(ipvs.Remove, tcp, gone)},
	} {
		tg := &target{drainer: drainer{timeout: c.timeout, of: draining{}}}
		if c.drains {
			tg.drainer.of.add(serverKey(&c.op.Key), c.op.Key)
		}
		if got := tg.request(&c.op, tg.drains(&c.op)); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	tg := &target{drainer: drainer{timeout: time.Minute, of: draining{}}}
	before := tg.deadline()
	removal := op{Kind: backends.Remove, Key: tcp}
	got, after := tg.request(&removal, tg.drains(&removal)), tg.deadline()
	isRight := false
	for upper := before; upper <= after; upper++ {
		isRight = isRight || got == request(ipvs.Change, tcp, ipvs.Destination{Addr: tcp.real, Upper: upper})
	}
	if !isRight {
		t.Errorf("removed: got %+v, want weight 0 until the deadline, second %d of uptime", got, before)
	}
}

func TestWhenDrainingIsOver(t *testing.T) {
	const now = 1000
	for _, c := range []struct {
		name         string
		state        ipvs.Destination
		drains, over bool
	}{
		{"it serves", ipvs.Destination{Weight: 1}, false, false},
		{"weight 0, of another program", ipvs.Destination{}, false, false},
		{"connections", ipvs.Destination{Upper: now + 1, Connections: 1}, true, false},
		{"no connections", ipvs.Destination{Upper: now + 1}, true, true},
		{"connections, after the deadline", ipvs.Destination{Upper: now, Connections: 1}, true, true},
	} {
		c.state.Addr = netip.MustParseAddrPort("10.0.0.1:8080")
		drains, over := stateOf([]ipvs.Destination{c.state}, c.state.Addr, now)
		if drains != c.drains || over != c.over {
			t.Errorf("%s: got draining %v and over %v, want %v and %v", c.name, drains, over, c.drains, c.over)
		}
	}
}

// A short count of connections is repeated after the interval. A long one takes at most a tenth of a processor.
func TestDrainPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: drainInterval, drainInterval / 20: drainInterval, 2 * time.Second: 20 * time.Second} {
		if got := drainPause(took); got != want {
			t.Errorf("after a count of %v: got a pause of %v, want %v", took, got, want)
		}
	}
}
