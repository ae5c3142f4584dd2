//go:build ipvs

package ipvs

import (
	"context"
	"net/netip"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// A virtual server counts connections, packets and bytes of both directions, its destination
// connections.
func TestStatistics(t *testing.T) {
	for _, family := range []struct {
		name        string
		vip, server netip.Prefix
		header      uint64 // bytes of IP and UDP
	}{
		{"IPv4", netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("10.0.0.1/32"), 28},
		{"IPv6", netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("2001:db8:1::1/128"), 48},
	} {
		t.Run(family.name, func(t *testing.T) {
			ns := netnstest.NewNS(t)
			c := netnstest.Open(t, ns, Open)
			for _, p := range []netip.Prefix{family.vip, family.server} {
				testenv.NoError(t, ns.AddAddress("lo", p))
			}
			key := ServiceKey{Protocol: 17, Addr: netip.AddrPortFrom(family.vip.Addr(), 53)}
			server := netip.AddrPortFrom(family.server.Addr(), 5353)
			do(t, c, AddService(key, ServiceConfig{Scheduler: RR}), AddDestination(key, Destination{Addr: server, Weight: 1}))

			const exchanges = 3
			listener, err := ns.ListenPacket(t.Context(), "udp", server.String())
			testenv.NoError(t, err)
			testenv.CloseAtEnd(t, listener)
			client, err := ns.Dial(t.Context(), "udp", key.Addr.String())
			testenv.NoError(t, err)
			testenv.CloseAtEnd(t, client)
			buf := make([]byte, 100)
			for range exchanges {
				testenv.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
				if _, err := client.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				_, from, err := listener.ReadFrom(buf)
				testenv.NoError(t, err)
				if _, err := listener.WriteTo([]byte("hi"), from); err != nil {
					t.Fatal(err)
				}
				if _, err := client.Read(buf); err != nil {
					t.Fatal(err)
				}
			}

			want := Stats{
				Connections: 1, InPackets: exchanges, OutPackets: exchanges,
				InBytes: exchanges * (family.header + 5), OutBytes: exchanges * (family.header + 2),
			}
			checkStats(t, c, key, want)
		})
	}
}

// checkStats waits for statistics, which the kernel updates every two seconds.
func checkStats(t *testing.T, c *Conn, k ServiceKey, want Stats) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var services []Service
	var pool []DestinationState
	for {
		var err error
		if services, err = c.Services(ctx); err != nil {
			t.Fatalf("got %+v, want %+v; error %v", services, want, err)
		}
		if pool, err = c.Destinations(ctx, k); err != nil {
			t.Fatal(err)
		}
		if len(services) != 1 || len(pool) != 1 {
			t.Fatalf("got virtual servers %+v and destinations %+v, want one of each", services, pool)
		}
		if services[0].Stats == want {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if diff := gocmp.Diff([2]uint32{0, 1}, [2]uint32{pool[0].Active, pool[0].Inactive}); diff != "" {
		t.Errorf("active and inactive connections (-want +got):\n%s", diff)
	}
}
