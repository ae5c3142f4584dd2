package nftables

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// plain has the addresses of a flowStage.
type plain struct {
	client, clientSide, servers, serverSide, vips string
	ends                                          [2]netip.Addr
	vip, external, nodeIP                         netip.Addr
}

func plainOf(fam v1.IPFamily) plain {
	a := netip.MustParseAddr
	if fam == v1.IPv6Protocol {
		return plain{
			client: "2001:db8:1::2/64", clientSide: "2001:db8:1::1/64", servers: "fd00:10::9/64 fd00:10::2/64 fd00:10::3/64", serverSide: "fd00:10::1/64", vips: "fd00:96::/112",
			ends: [2]netip.Addr{a("fd00:10::2"), a("fd00:10::3")}, vip: a("fd00:96::10"), external: a("fd00:96::20"), nodeIP: a("2001:db8:1::1"),
		}
	}
	return plain{
		client: "192.0.2.2/24", clientSide: "192.0.2.1/24", servers: "10.0.0.9/16 10.0.0.2/16 10.0.0.3/16", serverSide: "10.0.0.1/16", vips: "10.96.0.0/16",
		ends: [2]netip.Addr{a("10.0.0.2"), a("10.0.0.3")}, vip: a("10.96.0.10"), external: a("10.96.0.20"), nodeIP: a("192.0.2.1"),
	}
}

// flowStage is a stage between a network of UDP clients and one of servers. Packets that are
// not translated reach a gateway, which has all virtual addresses.
type flowStage struct {
	*stage
	plain
	fam     v1.IPFamily
	client  *netns.NS
	removed int
}

func newFlowStage(t *testing.T, fam v1.IPFamily) *flowStage {
	s := &flowStage{plain: plainOf(fam), fam: fam, stage: newStage(t)}
	s.client = s.Lab.Add(lab.Host{Name: "clients", Uplink: "node", Addrs: s.plain.client, Gateway: s.clientSide})
	s.Lab.Add(lab.Host{Name: "servers", Uplink: "node", Addrs: s.servers, Gateway: s.serverSide, Owned: s.vips, Serve: []uint16{53, 5353}})
	s.startAgent(t)
	return s
}

// nameOf names the server that has an address.
func (s *flowStage) nameOf(server netip.AddrPort) string {
	return map[netip.AddrPort]string{
		netip.AddrPortFrom(s.ends[0], 5353): "A", netip.AddrPortFrom(s.ends[1], 5353): "B",
		netip.AddrPortFrom(s.vip, 53): "gateway", netip.AddrPortFrom(s.external, 53): "external gateway",
	}[server]
}

// startAgent replaces the backend and the conntrack cleaner by new ones.
func (s *flowStage) startAgent(t *testing.T) {
	t.Helper()
	s.Restart(t)
	var c *conntrack.Cleaner
	err := s.NS.Do(func() (err error) {
		c, err = conntrack.New(conntrack.Options{Observe: func(a conntrack.Account) { s.removed += a.Removed }})
		return err
	})
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	s.Flows = c
}

// with returns a snapshot of the Service with some frontends and endpoints.
func (s *flowStage) with(frontends, ends string) proxy.Snapshot {
	at, node := "", &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}
	for name, text := range map[string]string{
		"vip": netip.AddrPortFrom(s.vip, 53).String(), "external": "ext=" + netip.AddrPortFrom(s.external, 53).String(),
		"nodeport": stagetest.NodePort(s.fam, 30053).Addr.String(),
	} {
		if strings.Contains(frontends, name) {
			at += " " + text
		}
	}
	var pool []string
	for i, name := range []string{"A", "B"} {
		if strings.Contains(ends, name) {
			pool = append(pool, netip.AddrPortFrom(s.ends[i], 5353).String())
		}
	}
	if at == "" {
		return proxy.NewSnapshot(node)
	}
	return proxy.NewSnapshot(node, snapshots.Port("service-00001/UDP", at, pool...))
}

// sender is a client that sends all the time from one port.
type sender struct {
	sent    atomic.Int64
	replies chan reply
}

type reply struct {
	server  string
	request int64
}

func (s *flowStage) newSender(t *testing.T, port uint16, dest netip.AddrPort) *sender {
	t.Helper()
	conn, err := s.client.ListenPacket(t.Context(), "udp", fmt.Sprintf(":%d", port))
	testenv.NoError(t, err)
	out := &sender{replies: make(chan reply, 1<<16)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			// The kernel returns errors after it rejected packets.
			_, _ = conn.WriteTo(fmt.Appendf(nil, "%d", out.sent.Add(1)), net.UDPAddrFromAddrPort(dest))
			<-tick.C
		}
	})
	wg.Go(func() {
		for buf := make([]byte, 256); ctx.Err() == nil; {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				continue
			}
			a, err := lab.ParseAnswer(string(buf[:n]))
			r := reply{server: s.nameOf(a.Own)}
			if r.request, _ = strconv.ParseInt(a.Question, 10, 64); err == nil {
				out.replies <- r
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		wg.Wait()
	})
	return out
}

// nextServer returns the server that replies to requests which are sent from now on; "" if
// none does. Without a wanted server it waits for some datagrams, otherwise longer, because a
// reply may be late on a busy machine.
func (s *sender) nextServer(t *testing.T, want string) string {
	t.Helper()
	const enough, patience = 100, time.Minute
	now, end := s.sent.Load(), time.After(patience)
	for want != "" || s.sent.Load() < now+enough {
		select {
		case r := <-s.replies:
			if r.request > now {
				return r.server
			}
		case <-time.After(time.Millisecond):
		case <-end:
			return ""
		}
	}
	return ""
}

// Clients that send UDP all the time, from one source port each, always reach the servers of
// the last snapshot, and never those of an earlier one.
func TestStaleFlows(t *testing.T) {
	t.Parallel()
	for _, fam := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		t.Run(string(fam), func(t *testing.T) { testStaleFlows(t, newFlowStage(t, fam)) })
	}
}

func testStaleFlows(t *testing.T, s *flowStage) {
	senders := []*sender{
		s.newSender(t, 4001, netip.AddrPortFrom(s.vip, 53)),
		s.newSender(t, 4002, netip.AddrPortFrom(s.external, 53)),
		s.newSender(t, 4003, netip.AddrPortFrom(s.nodeIP, 30053)),
	}
	servers := func(want [3]string) [3]string {
		return [3]string{senders[0].nextServer(t, want[0]), senders[1].nextServer(t, want[1]), senders[2].nextServer(t, want[2])}
	}
	const all, without, external = "vip external nodeport", "gateway", "external gateway"
	for i, step := range []struct {
		what, frontends, ends string
		want                  [3]string
		stale                 int // 0: none may be removed
	}{
		{what: "no service", want: [3]string{without, external, ""}},
		{what: "service added", frontends: all, ends: "A", want: [3]string{"A", "A", "A"}, stale: 3},
		{what: "endpoint replaced", frontends: all, ends: "B", want: [3]string{"B", "B", "B"}, stale: 3},
		{what: "endpoint added", frontends: all, ends: "A B", want: [3]string{"B", "B", "B"}},
		{what: "scaled down", frontends: all, ends: "A", want: [3]string{"A", "A", "A"}, stale: 3},
		{what: "scaled to zero", frontends: all, want: [3]string{}, stale: 3},
		{what: "scaled up", frontends: all, ends: "A", want: [3]string{"A", "A", "A"}},
		{what: "node port removed", frontends: "vip external", ends: "A", want: [3]string{"A", "A", ""}, stale: 1},
		{what: "external IP removed", frontends: "vip", ends: "A", want: [3]string{"A", external, ""}, stale: 1},
		{what: "node port added", frontends: "vip nodeport", ends: "A", want: [3]string{"A", external, "A"}, stale: 1},
		{what: "external IP added", frontends: all, ends: "A", want: [3]string{"A", "A", "A"}, stale: 1},
		{what: "service deleted", want: [3]string{without, external, ""}, stale: 3},
		{what: "service added again", frontends: all, ends: "B", want: [3]string{"B", "B", "B"}, stale: 3},
	} {
		s.removed = 0
		s.Apply(t, s.with(step.frontends, step.ends))
		if got := s.settled(t, servers, step.want); got != step.want {
			t.Fatalf("step %d, %s: servers of the clients: got %q, want %q", i, step.what, got, step.want)
		}
		if step.stale == 0 && s.removed > 0 {
			t.Errorf("step %d, %s: removed flows: got %d, want none", i, step.what, s.removed)
		}
	}

	// The agent is killed after it has written the rules and before it cleans the flows.
	half := s.Beside(t, Options{})
	half.Apply(t, s.with(all, "A"))
	want := [3]string{"B", "B", "B"}
	if got := servers(want); got != want {
		t.Errorf("servers of the clients before flows are cleaned: got %q, want %q", got, want)
	}
	s.startAgent(t)
	s.Apply(t, s.with(all, "A"))
	want = [3]string{"A", "A", "A"}
	if got := servers(want); got != want {
		t.Errorf("servers of the clients after a restart: got %q, want %q", got, want)
	}
	s.removed = 0
	s.startAgent(t)
	s.Apply(t, s.with(all, "A"))
	if s.removed != 0 {
		t.Errorf("flows removed by a restart that changed nothing: got %d, want none", s.removed)
	}

	testRemovedMeanwhile(t, s, all, [3]string{"A", external, ""}, servers)
}

// testRemovedMeanwhile removes all frontends but one while no agent runs. The new one lists the tables, or
// replaces them.
func testRemovedMeanwhile(t *testing.T, s *flowStage, all string, want [3]string, servers func([3]string) [3]string) {
	t.Helper()
	for what, restart := range map[string]func(){
		"listed":   func() {},
		"replaced": func() { s.restartReplacing(t) },
		"changed by another program": func() {
			// In the other case the tables have other names by now.
			script := fmt.Sprintf("add table %v vipkit { flags dormant; }\nadd table %[1]v vipkit_2 { flags dormant; }\n", nft.FamilyOf(s.fam))
			if _, err := netnstest.Run(t, s.NS, script, netnstest.NFT(t), "-f", "-"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s.Apply(t, s.with(all, "A"))
		before := [3]string{"A", "A", "A"}
		if got := s.settled(t, servers, before); got != before {
			t.Fatalf("servers of the clients before frontends are removed, tables %s: got %q, want %q", what, got, before)
		}
		s.startAgent(t)
		restart()
		s.Apply(t, s.with("vip", "A"))
		if got := servers(want); got != want {
			t.Errorf("servers of the clients after frontends were removed without an agent, tables %s: got %q, want %q", what, got, want)
		}
	}
}
