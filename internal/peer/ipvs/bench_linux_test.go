//go:build ipvs

package ipvs_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	own "github.com/vipkit/vipkit/internal/ipvs"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Processes)) }

const (
	services     = 1000
	destinations = 10 // of each service
)

func serviceAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
}

func destinationAddr(i, j int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}), 8080)
}

// client is one of the two packages.
type client interface {
	load(b *testing.B)                 // all services with their destinations
	replace(b *testing.B, out, in int) // a destination of service 0
	list(b *testing.B) (n int)         // destinations
	clear(b *testing.B)
}

type vipkit struct {
	conn *own.Conn
	ops  []own.Op
}

func (v *vipkit) do(b *testing.B) {
	failed, err := v.conn.Do(b.Context(), v.ops)
	if err != nil || len(failed) != 0 {
		b.Fatalf("got %d failures and error %v", len(failed), err)
	}
	v.ops = v.ops[:0]
}

func key(i int) own.ServiceKey {
	return own.ServiceKey{Protocol: unix.IPPROTO_TCP, Addr: serviceAddr(i)}
}

func (v *vipkit) load(b *testing.B) {
	for i := range services {
		v.ops = append(v.ops, own.AddService(key(i), own.ServiceConfig{Scheduler: own.RR}))
		for j := range destinations {
			v.ops = append(v.ops, own.AddDestination(key(i), own.Destination{Addr: destinationAddr(i, j), Weight: 1}))
		}
	}
	v.do(b)
}

func (v *vipkit) replace(b *testing.B, out, in int) {
	v.ops = append(v.ops,
		own.AddDestination(key(0), own.Destination{Addr: destinationAddr(0, in), Weight: 1}),
		own.DelDestination(key(0), destinationAddr(0, out)))
	v.do(b)
}

func (v *vipkit) list(b *testing.B) (n int) {
	all, err := v.conn.Services(b.Context())
	testenv.NoError(b, err)
	for _, s := range all {
		d, err := v.conn.Destinations(b.Context(), s.Key)
		testenv.NoError(b, err)
		n += len(d)
	}
	return n
}

func (v *vipkit) clear(b *testing.B) {
	for i := range services {
		v.ops = append(v.ops, own.DelService(key(i)))
	}
	v.do(b)
}

type moby struct{ handle *ipvs.Handle }

func check(b *testing.B, err error) {
	testenv.NoError(b, err)
}

func service(i int) *ipvs.Service {
	a := serviceAddr(i)
	return &ipvs.Service{
		AddressFamily: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Address: net.IP(a.Addr().AsSlice()), Port: a.Port(),
		SchedName: ipvs.RoundRobin, Netmask: 0xffffffff,
	}
}

func destination(i, j int) *ipvs.Destination {
	a := destinationAddr(i, j)
	return &ipvs.Destination{AddressFamily: unix.AF_INET, Address: net.IP(a.Addr().AsSlice()), Port: a.Port(), Weight: 1}
}

func (m *moby) load(b *testing.B) {
	for i := range services {
		s := service(i)
		check(b, m.handle.NewService(s))
		for j := range destinations {
			check(b, m.handle.NewDestination(s, destination(i, j)))
		}
	}
}

func (m *moby) replace(b *testing.B, out, in int) {
	check(b, m.handle.NewDestination(service(0), destination(0, in)))
	check(b, m.handle.DelDestination(service(0), destination(0, out)))
}

func (m *moby) list(b *testing.B) (n int) {
	all, err := m.handle.GetServices()
	check(b, err)
	for _, s := range all {
		d, err := m.handle.GetDestinations(s)
		check(b, err)
		n += len(d)
	}
	return n
}

func (m *moby) clear(b *testing.B) { check(b, m.handle.Flush()) }

// both runs a benchmark with each package. Each client has a network namespace of its own.
func both(b *testing.B, f func(b *testing.B, connect func() client)) {
	b.Run("vipkit", func(b *testing.B) {
		f(b, func() client {
			return &vipkit{conn: netnstest.Open(b, netnstest.NewNS(b), own.Open)}
		})
	})
	b.Run("moby", func(b *testing.B) {
		f(b, func() client {
			m := &moby{}
			check(b, netnstest.NewNS(b).Do(func() (err error) {
				m.handle, err = ipvs.New("")
				return err
			}))
			b.Cleanup(m.handle.Close)
			return m
		})
	})
}

// BenchmarkLoad adds 1,000 services with 10 destinations each to an empty namespace. In one
// that had destinations the kernel keeps those for two minutes, and looks through all of them
// for each destination that is added.
func BenchmarkLoad(b *testing.B) {
	both(b, func(b *testing.B, connect func() client) {
		for b.Loop() {
			b.StopTimer()
			c := connect()
			b.StartTimer()
			c.load(b)
			b.StopTimer()
			if n := c.list(b); n != services*destinations {
				b.Fatalf("got %d destinations", n)
			}
			c.clear(b)
			b.StartTimer()
		}
	})
}

// BenchmarkReload adds them again after all were removed.
func BenchmarkReload(b *testing.B) {
	both(b, func(b *testing.B, connect func() client) {
		c := connect()
		c.load(b)
		c.clear(b)
		for b.Loop() {
			c.load(b)
			b.StopTimer()
			c.clear(b)
			b.StartTimer()
		}
	})
}

// BenchmarkReplace replaces one destination beside 1,000 services with 10 each.
func BenchmarkReplace(b *testing.B) {
	both(b, func(b *testing.B, connect func() client) {
		c := connect()
		c.load(b)
		out, in := 0, destinations
		for b.Loop() {
			c.replace(b, out, in)
			out, in = in, out
		}
		c.clear(b)
	})
}

// BenchmarkList lists 1,000 services with 10 destinations each, service by service.
func BenchmarkList(b *testing.B) {
	both(b, func(b *testing.B, connect func() client) {
		c := connect()
		c.load(b)
		for b.Loop() {
			if n := c.list(b); n != services*destinations {
				b.Fatalf("got %d destinations", n)
			}
		}
		c.clear(b)
	})
}
