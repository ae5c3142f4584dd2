//go:build ipvs

package ipvs

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func (s *stage) traffic(t testing.TB, of proxy.Snapshot) map[proxy.ServicePortName]proxy.Traffic {
	t.Helper()
	all := map[proxy.ServicePortName]proxy.Traffic{}
	err := s.Backend.Abilities().CountTraffic(t.Context(), of, func(port proxy.ServicePortName, x proxy.Traffic) { all[port] = x })
	testenv.NoError(t, err)
	return all
}

// Traffic at all frontends of a service port is added up, also by marks, at node ports and by UDP. It
// goes on after a restart. Other service ports, and virtual servers of other programs, have none.
func TestTraffic(t *testing.T) {
	s := newStage(t, Options{})
	w := newTalkers(t, s, 2)
	p, udp, idle := w.port(0, 0, 1), w.port(1, 0), stagetest.Port(v1.IPv6Protocol, 2, 1)
	p.Local, p.ExternalLocal = p.Cluster[:1], true
	external := p.Frontends[0]
	external.Kind, external.Addr = proxy.ExternalIP, addrPort("203.0.113.9", 80)
	external.FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	p.Frontends = append(p.Frontends, external, stagetest.NodePort(v1.IPv4Protocol, 30_000))
	udp.Name.Protocol = v1.ProtocolUDP
	blocked := stagetest.Port(v1.IPv4Protocol, 3, 1)
	s.run(t, "ipvsadm -A -t "+blocked.Frontends[0].Addr.String()+" -s wlc")
	all := snapshotOf(p, udp, idle, blocked)
	s.Apply(t, snapshotOf(p, udp, idle))
	want := map[proxy.ServicePortName]proxy.Traffic{p.Name: {}, udp.Name: {}, idle.Name: {}}
	if diff := cmp.Diff(want, s.traffic(t, all)); diff != "" {
		t.Errorf("before connections (-want +got):\n%s", diff)
	}
	for _, f := range p.Frontends[:2] {
		w.answering(t, f.Addr, 2)
	}
	w.answering(t, addrPort("192.0.2.1", 30_000), 3)
	const headers = 20 + 8 // of IPv4 and UDP
	var wanted proxy.Traffic
	for range 6 {
		a, err := lab.Ask(t.Context(), w.Client, "udp", udp.Frontends[0].Addr.String())
		testenv.NoError(t, err)
		wanted.BytesIn += headers + uint64(len("1\n"))
		wanted.BytesOut += headers + uint64(len(fmt.Sprintln(a.Question, a.Name, a.Client, a.Own)))
	}
	// A process of the node gets to the endpoints of all nodes, by the virtual server of a mark.
	if _, err := netnstest.Run(t, s.NS, "", "bash", "-c", "exec 3<>/dev/tcp/203.0.113.9/80"); err != nil {
		t.Fatalf("connection of the node: %v", err)
	}
	await(t, "all connections are counted", func() bool {
		got := s.traffic(t, all)
		return got[p.Name].Connections == 8 && got[udp.Name].Connections == 6
	})
	await(t, "all packets are counted", func() bool {
		got := s.traffic(t, all)
		return got[udp.Name].PacketsIn == 6 && got[udp.Name].PacketsOut == 6 && got[p.Name].PacketsOut >= 2*8
	})
	before := s.traffic(t, all)
	if x := before[udp.Name]; x.BytesIn != wanted.BytesIn || x.BytesOut != wanted.BytesOut {
		t.Errorf("bytes of 6 datagrams and answers: got %+v, want %+v", x, wanted)
	}
	if x := before[idle.Name]; x != (proxy.Traffic{}) {
		t.Errorf("traffic of another Service: got %v, want none", x)
	}
	s.adopts(t, snapshotOf(p, udp, idle))
	if got := s.traffic(t, all); got[udp.Name] != before[udp.Name] || got[p.Name].Connections != 8 {
		t.Errorf("traffic after a restart: got %v, want %v", got, before)
	}
}

// Traffic can be counted while changes are applied that give node ports other addresses.
func TestTrafficDuringChanges(t *testing.T) {
	s := newStage(t, Options{})
	s.run(t, "ip addr add "+nodeAddress().String()+"/32 dev lo")
	worlds := []proxy.Snapshot{snapshotOf(atNode(1, 0, 30080)), snapshotOf(atNode(0, 30080, 0), atNode(1, 0, 30080))}
	s.Apply(t, worlds[0])
	ctx, cancel := context.WithCancel(t.Context())
	var counting sync.WaitGroup
	for _, world := range worlds {
		counting.Go(func() {
			for ctx.Err() == nil {
				err := s.Backend.Abilities().CountTraffic(ctx, world, func(proxy.ServicePortName, proxy.Traffic) {})
				if err != nil && ctx.Err() == nil {
					t.Errorf("CountTraffic: got error %v, want none", err)
				}
			}
		})
	}
	for i := range 20 {
		s.Apply(t, worlds[(i+1)%2])
	}
	cancel()
	counting.Wait()
}
