package nftables

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func stickyPort(fam v1.IPFamily, i, n int) *proxy.ServicePort {
	p := stagetest.Port(fam, i, n)
	p.Affinity = affinity.Config{Timeout: time.Hour}
	return p
}

func bothFamilies() []v1.IPFamily { return []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }

// addClients adds clients to the affinity maps, as if they had connected: the endpoints are
// assigned to the clients in turn.
func (s *stage) addClients(t *testing.T, p *proxy.ServicePort, n int) {
	t.Helper()
	addClientsTo(t, s.conn(t), "vipkit", p, n)
}

func addClientsTo(t *testing.T, c *nfnetlink.Conn, tableName string, p *proxy.ServicePort, n int) {
	t.Helper()
	fam := nft.FamilyOf(p.Name.Family)
	name := affinityMap(affinityID(p.Name), proxy.PoolCluster)
	table := nfnetlink.Table{Family: fam, Name: tableName}
	for first := 0; first < n; first += 1000 {
		var b nfnetlink.Batch
		for _, part := range []string{"address", "port"} {
			if part == "port" && fam == nfnetlink.IPv4 {
				continue
			}
			set := name
			if part == "port" {
				set = affinityPortMap(name)
			}
			w := b.Elements(nfnetlink.OpAdd, table, set)
			for i := first; i < min(n, first+1000); i++ {
				e := p.Cluster[i%len(p.Cluster)].Addr
				to := slot{addr: bytesOf(fam, e.Addr()), port: e.Port()}
				data := to.append(nil, fam)
				switch {
				case part == "port":
					data = data[16:18]
				case fam == nfnetlink.IPv6:
					data = data[:16]
				}
				w.KeyData(clientKey(fam, i), data)
			}
		}
		testenv.NoError(t, c.Commit(t.Context(), &b))
	}
}

func clientKey(fam nfnetlink.Family, i int) []byte {
	k := make([]byte, fam.AddrLen())
	k[0] = 11
	binary.BigEndian.PutUint16(k[len(k)-2:], uint16(i))
	k[1] = byte(i >> 16)
	return k
}

// clients counts the clients of a service port by the address of their endpoint.
func (s *stage) clients(t *testing.T, p *proxy.ServicePort) map[string]int {
	t.Helper()
	return clientsIn(t, s.conn(t), "vipkit", p)
}

func clientsIn(t *testing.T, c *nfnetlink.Conn, table string, p *proxy.ServicePort) map[string]int {
	t.Helper()
	fam := nft.FamilyOf(p.Name.Family)
	counts := map[string]int{}
	err := c.Elements(t.Context(), nfnetlink.Table{Family: fam, Name: table},
		affinityMap(affinityID(p.Name), proxy.PoolCluster), nfnetlink.Visitor[nfnetlink.Element]{
			Begin: func() { clear(counts) },
			Each: func(e *nfnetlink.Element) error {
				var a [16]byte
				copy(a[:], e.Data[:fam.AddrLen()])
				counts[addrText(fam, a)]++
				return nil
			},
		})
	testenv.NoError(t, err)
	return counts
}

// Clients lose their affinity to an endpoint when it is removed, also if it was removed
// while no backend was running. All other clients keep theirs.
func TestClientsForgetRemovedEndpoints(t *testing.T) {
	t.Parallel()
	for _, fam := range bothFamilies() {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart: %t", fam, restart), func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				three, other := stickyPort(fam, 0, 3), stickyPort(fam, 1, 2)
				s.Apply(t, proxy.NewSnapshot(stagetest.Node(), three, other))
				s.addClients(t, three, 30)
				s.addClients(t, other, 10)
				want := s.clients(t, three)
				delete(want, three.Cluster[1].Addr.Addr().String())
				others := s.clients(t, other)

				two := *three
				two.Cluster = append(two.Cluster[:1:1], three.Cluster[2])
				if restart {
					s.Restart(t)
				}
				s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two, other))
				if diff := cmp.Diff(want, s.clients(t, three)); diff != "" {
					t.Errorf("clients by endpoint (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(others, s.clients(t, other)); diff != "" {
					t.Errorf("clients of another service port (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Two endpoints may have the same address: when one is removed, only its clients lose their
// affinity.
func TestClientsForgetOnePortOfAnAddress(t *testing.T) {
	t.Parallel()
	for _, fam := range bothFamilies() {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart: %t", fam, restart), func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				p := stickyPort(fam, 0, 1)
				p.Cluster = append(p.Cluster, stagetest.Endpoint(fam, 1, 9090))
				s.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
				s.addClients(t, p, 20)
				one := *p
				one.Cluster = p.Cluster[1:]
				if restart {
					s.Restart(t)
				}
				s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one))
				want := map[string]int{p.Cluster[0].Addr.Addr().String(): 10}
				if diff := cmp.Diff(want, s.clients(t, p)); diff != "" {
					t.Errorf("clients by endpoint (-want +got):\n%s", diff)
				}
				if fam == v1.IPv6Protocol {
					// The port of a removed endpoint must not be left for the next one.
					s.wantPorts(t, p, 10)
				}
			})
		}
	}
}

// wantPorts checks how many clients the map of the ports of a service port's endpoints has.
func (s *stage) wantPorts(t *testing.T, p *proxy.ServicePort, want int) {
	t.Helper()
	table := nfnetlink.Table{Family: nft.FamilyOf(p.Name.Family), Name: "vipkit"}
	ports := affinityPortMap(affinityMap(affinityID(p.Name), proxy.PoolCluster))
	got := 0
	err := s.conn(t).Elements(t.Context(), table, ports, nfnetlink.Visitor[nfnetlink.Element]{
		Begin: func() { got = 0 },
		Each:  func(*nfnetlink.Element) error { got++; return nil },
	})
	if err != nil || got != want {
		t.Errorf("clients in map %s: got %d (error: %v), want %d", ports, got, err, want)
	}
}

// Tens of thousands of clients of one service port have affinity, and keep it at a restart.
func TestManyClients(t *testing.T) {
	t.Parallel()
	const clients = 60_000
	for _, fam := range bothFamilies() {
		t.Run(string(fam), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			p := stickyPort(fam, 0, 7)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
			s.addClients(t, p, clients)
			s.Restart(t)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
			total := 0
			for _, n := range s.clients(t, p) {
				total += n
			}
			if total != clients {
				t.Errorf("clients with affinity after a restart: got %d, want %d", total, clients)
			}
			six := *p
			six.Cluster = p.Cluster[1:]
			start := time.Now()
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &six))
			t.Logf("one of 7 endpoints of %d clients removed in %v", clients, time.Since(start).Round(time.Millisecond))
			if got := s.clients(t, p); len(got) != 6 || got[p.Cluster[0].Addr.Addr().String()] != 0 {
				t.Errorf("clients by endpoint: got %v, want only those of the six remaining endpoints", got)
			}
		})
	}
}
