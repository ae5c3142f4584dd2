package iptables

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func flavours() []Flavour { return []Flavour{Legacy, NFT} }

func testNode() *proxy.Node {
	return &proxy.Node{
		Name:         "node",
		NodePorts:    proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: prefixes("10.0.0.0/9", "fd00:10::/32")},
		ServiceCIDRs: prefixes("10.128.0.0/9", "fd00:96::/32"),
	}
}

// clusterIP is an address from the service range, hostIP one of a pod.
func clusterIP(fam v1.IPFamily, i int) netip.Addr {
	i++
	if fam == v1.IPv6Protocol {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x96, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{10, byte(128 + i>>16), byte(i >> 8), byte(i)})
}

func hostIP(fam v1.IPFamily, i int) netip.Addr {
	if fam == v1.IPv6Protocol {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func endpoint(fam v1.IPFamily, i int) *endpoints.Endpoint {
	return &endpoints.Endpoint{Addr: netip.AddrPortFrom(hostIP(fam, i), 8080), Ready: true, Serving: true}
}

func forward(m proxy.Masquerade) proxy.TrafficRoute {
	return proxy.TrafficRoute{Action: proxy.Forward, Masquerade: m}
}

// newPort makes service port i with a ClusterIP and n endpoints, which no other
// port has.
func newPort(fam v1.IPFamily, i, n int) *proxy.ServicePort {
	p := &proxy.ServicePort{
		Name: proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: "test", Name: fmt.Sprintf("service-%05d", i)},
			Protocol:       v1.ProtocolTCP, Family: fam,
		},
		Frontends: []proxy.Frontend{{
			Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(clusterIP(fam, i), 80),
			FromInside: forward(proxy.MasqueradeNonPods), FromOutside: forward(proxy.MasqueradeAlways),
		}},
	}
	if n == 0 {
		none := proxy.TrafficRoute{Action: proxy.Reject}
		p.Frontends[0].FromInside, p.Frontends[0].FromOutside = none, none
	}
	for e := range n {
		p.Cluster = append(p.Cluster, endpoint(fam, 1+i*64+e))
	}
	return p
}

func nodePort(fam v1.IPFamily, port uint16) proxy.Frontend {
	addr := netip.IPv4Unspecified()
	if fam == v1.IPv6Protocol {
		addr = netip.IPv6Unspecified()
	}
	return proxy.Frontend{
		Kind: proxy.NodePort, Addr: netip.AddrPortFrom(addr, port),
		FromInside: forward(proxy.MasqueradeAlways), FromOutside: forward(proxy.MasqueradeAlways),
	}
}

// world has n services with so many endpoints each.
func world(fam v1.IPFamily, n, endpoints int) []*proxy.ServicePort {
	all := make([]*proxy.ServicePort, n)
	for i := range all {
		all[i] = newPort(fam, i, endpoints)
	}
	return all
}

// moved gives a service port of which the last endpoint is another one.
func moved(p *proxy.ServicePort, to int) *proxy.ServicePort {
	q := *p
	q.Cluster = append([]*endpoints.Endpoint(nil), p.Cluster...)
	q.Cluster[len(q.Cluster)-1] = endpoint(p.Name.Family, to)
	return &q
}

// stage is a network namespace with a backend in it.
type stage struct {
	ns      *netns.NS
	options Options
	backend proxy.Backend
	applied proxy.Snapshot
}

func newStage(t testing.TB, o Options) *stage {
	t.Helper()
	NeedPrograms(t, o)
	s := &stage{ns: netnstest.NewNS(t), options: o}
	s.restart(t)
	return s
}

// restart puts a new backend in the place of the one before, which knows
// nothing.
func (s *stage) restart(t testing.TB) {
	t.Helper()
	s.backend, s.applied = s.newBackend(t, s.options), proxy.Snapshot{}
}

func (s *stage) newBackend(t testing.TB, o Options) (b proxy.Backend) {
	t.Helper()
	err := s.ns.Do(func() (err error) {
		b, err = New(o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *stage) apply(t testing.TB, want proxy.Snapshot) {
	t.Helper()
	if err := s.backend.Apply(t.Context(), s.applied, want); err != nil {
		t.Fatalf("Apply: got error %v, want none", err)
	}
	s.applied = want
}

func (s *stage) operations(t testing.TB) uint64 {
	t.Helper()
	c, ok := s.backend.(proxy.OperationCounter)
	if !ok {
		t.Fatalf("%T does not count its operations", s.backend)
	}
	return c.Operations()
}

// run runs a program of the flavour, say ip6tables-save, with its input.
func (s *stage) run(t testing.TB, input, name string, args ...string) string {
	t.Helper()
	if s.options.Flavour != Default {
		stem, what, _ := strings.Cut(name, "-")
		name = strings.TrimSuffix(stem+"-"+string(s.options.Flavour)+"-"+what, "-")
	}
	path, err := lookUp(name)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err = s.ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, &errs)
	}
	return out.String()
}

// dump gives everything of the identity, comparable.
func (s *stage) dump(t testing.TB) (out string) {
	t.Helper()
	err := s.ns.Do(func() (err error) {
		out, err = Dump(context.WithoutCancel(t.Context()), s.options)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func testRandom(t testing.TB) *rand.Rand { return testenv.Random(t) }
