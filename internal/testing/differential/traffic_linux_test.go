package differential

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// web is a Service of TCP and UDP for both families; n is part of its name, addresses and node ports.
func web(n int) proxy.Snapshot {
	node := &proxy.Node{
		Name: "node-1", NodePorts: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.244.1.0/24", "fd00:244:1::/64")},
		ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16", "fd00:96::/112"),
	}
	var ports []*proxy.ServicePort
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		one := snapshots.EachWith(oneService(), func(p *proxy.ServicePort) {
			p.Name.Name, p.Name.Port, p.Name.Protocol = fmt.Sprint("web-", n), strings.ToLower(string(protocol)), protocol
			at, nodePort := p.Frontends[0].Addr, p.Frontends[1].Addr
			for range n {
				at = netip.AddrPortFrom(at.Addr().Next(), at.Port())
			}
			p.Frontends[0].Addr, p.Frontends[1].Addr = at, netip.AddrPortFrom(nodePort.Addr(), nodePort.Port()+uint16(n))
		})
		ports = slices.AppendSeq(ports, one.All())
	}
	return proxy.NewSnapshot(node, ports...)
}

// wantService connects from everywhere to all frontends of web(n), except those that lacks names, if
// that is not nil.
func (p place) wantService(t *testing.T, when string, n int, lacks func(client string, clusterIP bool) bool) {
	t.Helper()
	// A client may choose the source port of an earlier flow, which continues to where it went.
	testenv.NoError(t, p.Netlink().ConntrackTableFlush(netlink.ConntrackTable))
	var asking sync.WaitGroup
	for from, ns := range p.clients {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range frontends(n) {
				if lacks != nil && lacks(from, strings.HasSuffix(to, ":80")) {
					continue
				}
				asking.Go(func() {
					if _, err := lab.Ask(t.Context(), ns, network, to); err != nil {
						t.Errorf("%s: %s from %s to %s: %v", when, network, from, to, err)
					}
				})
			}
		}
	}
	asking.Wait()
}

// frontends returns the frontends of web(n).
func frontends(n int) []string {
	return []string{
		fmt.Sprintf("10.96.0.%d:80", 10+n), fmt.Sprintf("[fd00:96::%x]:80", 0x10+n),
		fmt.Sprintf("192.0.2.1:%d", 30080+n), fmt.Sprintf("[2001:db8::1]:%d", 30080+n),
	}
}

const nameIPVS = "ipvs"

// A backend of one kind ends without Cleanup, and one of another kind starts, both with defaults. After
// the first Apply of the second one each client reaches each frontend. Until then the rules of the first
// one serve, unless its process must: no connection of a pod fails, and flows that the kernel translates go
// on. What ipvs leaves stays until its
// Cleanup, after which the second one serves; TPROXY does not before, since IPVS takes what it captures.
func TestTrafficFromKindToKind(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	snapshot := web(0)
	all := append(kinds(), ipvsKinds()...)
	for _, first := range all {
		for _, second := range all {
			if first.name == second.name {
				continue
			}
			t.Run(first.name+" "+second.name, func(t *testing.T) {
				a := p.open(t, first, backends.Identity{})
				apply(t, a, snapshot)
				p.wantService(t, "the first one runs", 0, nil)
				stop, open := func() int { return 1 }, []flow(nil)
				inKernel, conflicts := first.name == nameIPVS || strings.Contains(first.name, "tables"), first.name == nameIPVS && second.name == "tproxy"
				if inKernel && !conflicts {
					stop = p.connectAll(t)
				}
				if inKernel && first.name != nameIPVS {
					open = p.openFlows(t)
				}
				closeOf(t, a)
				b := p.open(t, second, backends.Identity{})
				apply(t, b, snapshot)
				if stop() == 0 {
					t.Error("connections during the switch: got none, want some")
				}
				for _, f := range open {
					if _, err := f.Ask(t.Context()); err != nil {
						t.Errorf("open during the switch: %s: %v", f.name, err)
					}
				}
				if !conflicts {
					p.wantService(t, "after the first Apply of the second one", 0, nil)
				}
				if first.name == nameIPVS {
					cleanUp(t, p.open(t, first, backends.Identity{}))
					p.wantService(t, "after the Cleanup of the first one", 0, nil)
				}
				cleanUp(t, b)
			})
		}
	}
}

// connectAll connects from the pod to the ClusterIPs of web(0), again and again, until it is stopped. It
// returns how many connections it has made in the family that had fewer.
func (p place) connectAll(t *testing.T) (stop func() (connections int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var n [2]int
	for i, to := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
		asking.Go(func() {
			for ; n[i] == 0 || ctx.Err() == nil; n[i]++ {
				if _, err := lab.Ask(context.WithoutCancel(ctx), p.clients["pod"], "tcp", to); err != nil {
					t.Errorf("connection %d to %s during the switch: %v", n[i], to, err)
				}
			}
		})
	}
	stop = func() int {
		cancel()
		asking.Wait()
		return min(n[0], n[1])
	}
	t.Cleanup(func() { stop() })
	return stop
}

// lackedBeside returns which clients do not reach the Services of an instance, if an instance of another
// kind serves the same ranges of ClusterIPs (docs/dataplane/identities.md).
func lackedBeside(k, other kind) func(client string, clusterIP bool) bool {
	return func(client string, clusterIP bool) bool {
		return clusterIP && client == "node" && k.name == "tproxy" && (other.name == nameIPVS || strings.HasPrefix(other.name, "iptables"))
	}
}

// Instances with identities of their own serve different Services of the same range: neither rejects,
// drops or captures connections to Services of the other, whichever starts first, nor removes them when it ends.
func TestTrafficSideBySide(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	all := append(kinds(), ipvsKinds()...)
	for _, first := range all {
		for _, second := range all {
			t.Run(first.name+" "+second.name, func(t *testing.T) {
				a := p.open(t, first, backends.Identity{Name: "one", Mark: 1 << 24})
				apply(t, a, web(0))
				b := p.open(t, second, backends.Identity{Name: "other", Mark: 1 << 25})
				apply(t, b, web(1))
				p.wantService(t, "Service of the first one", 0, lackedBeside(first, second))
				p.wantService(t, "Service of the second one", 1, lackedBeside(second, first))
				cleanUp(t, a)
				p.wantService(t, "Service of the second one, alone", 1, nil)
				cleanUp(t, b)
			})
		}
	}
}

func apply(t *testing.T, b proxy.Backend, s proxy.Snapshot) {
	t.Helper()
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
}

// An interface of the node gets addresses of the ranges of ClusterIPs, and loses them, while a backend runs:
// connections to them are for the node as long as it has the address, and dropped before and after.
func TestAddressOfTheRangeComesAndGoes(t *testing.T) {
	const silence = 300 * time.Millisecond
	t.Parallel()
	p := newPlace(t)
	p.lab.Serve("node", "node", 7777)
	for _, k := range kinds() {
		b := p.open(t, k, backends.Identity{})
		apply(t, b, web(0))
		var connecting sync.WaitGroup
		for _, address := range []string{"10.96.0.200/32", "fd00:96::200/128"} {
			connecting.Go(func() { p.wantComesAndGoes(t, k.name, netip.MustParsePrefix(address), silence) })
		}
		connecting.Wait()
		cleanUp(t, b)
	}
}

// wantComesAndGoes adds and removes an address, and connects before, meanwhile and after.
func (p place) wantComesAndGoes(t *testing.T, kind string, address netip.Prefix, silence time.Duration) {
	connect := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := lab.Ask(ctx, p.clients["pod"], "tcp", netip.AddrPortFrom(address.Addr(), 7777).String())
		return err
	}
	if err := connect(silence); !isTimeout(err) {
		t.Errorf("%s: connecting to %v before: got %v, want no answer", kind, address, err)
	}
	if err := p.AddAddress("pod", address); err != nil {
		t.Error(err)
	}
	if err := connect(time.Minute); err != nil {
		t.Errorf("%s: connecting to the node's address %v: %v", kind, address, err)
	}
	if _, err := netnstest.Run(t, p.NS, "", "ip", "addr", "del", address.String(), "dev", "pod"); err != nil {
		t.Error(err)
	}
	if err := connect(silence); !isTimeout(err) {
		t.Errorf("%s: connecting to %v after: got %v, want no answer", kind, address, err)
	}
}

func isTimeout(err error) bool {
	failed, is := errors.AsType[net.Error](err)
	return is && failed.Timeout()
}

// With TPROXY, UDP flows of the node end with their Service, although connection tracking knows them.
func TestFlowOfTheNodeEndsWithItsService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	tproxy := kinds()[3]
	b := p.open(t, tproxy, backends.Identity{})
	apply(t, b, web(0))
	clients := map[string]*lab.Conn{"10.96.0.10:80": nil, "[fd00:96::10]:80": nil}
	for to := range clients {
		c, err := lab.Dial(t.Context(), p.NS, "udp", to)
		testenv.NoError(t, err)
		testenv.CloseAtEnd(t, c)
		clients[to] = c
		for range 2 {
			_, err := c.Ask(t.Context())
			testenv.NoError(t, err)
		}
	}
	testenv.NoError(t, b.Apply(t.Context(), web(0), proxy.NewSnapshot(web(0).Node())))
	for to, c := range clients {
		if _, err := c.Ask(t.Context()); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: sending to %s after the Service is gone: got %v, want that the node drops it: %v", tproxy.name, to, err, unix.EPERM)
		}
	}
	cleanUp(t, b)
}
