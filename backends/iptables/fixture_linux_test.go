package iptables

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func flavours() []Flavour { return []Flavour{Legacy, NFT} }

// newPort makes service port i with a ClusterIP and n endpoints, which no other port has.
// Without endpoints, its route is reject.
func newPort(fam v1.IPFamily, i, n int) *proxy.ServicePort {
	p := stagetest.Port(fam, i, n)
	if n == 0 {
		none := proxy.TrafficRoute{Action: proxy.Reject}
		p.Frontends[0].FromInside, p.Frontends[0].FromOutside = none, none
	}
	return p
}

// newPorts makes n service ports with so many endpoints each.
func newPorts(fam v1.IPFamily, n, endpoints int) []*proxy.ServicePort {
	return objects.Many(n, func(i int) *proxy.ServicePort { return newPort(fam, i, endpoints) })
}

// moved returns a copy of a service port with another last endpoint.
func moved(p *proxy.ServicePort, to int) *proxy.ServicePort {
	q := *p
	q.Cluster = append([]*endpoints.Endpoint(nil), p.Cluster...)
	q.Cluster[len(q.Cluster)-1] = stagetest.Endpoint(p.Name.Family, to, 8080)
	return &q
}

// stage is a network namespace with a backend in it.
type stage struct{ *stagetest.Stage[Options] }

func newStage(t testing.TB, o Options) *stage {
	t.Helper()
	NeedPrograms(t, o)
	return &stage{stagetest.NewStage(t, o, New)}
}

// run runs a program of the flavour, such as ip6tables-save, and returns its output.
func (s *stage) run(t testing.TB, input, name string, args ...string) string {
	t.Helper()
	if s.Options.Flavour != Default {
		stem, what, _ := strings.Cut(name, "-")
		name = strings.TrimSuffix(stem+"-"+string(s.Options.Flavour)+"-"+what, "-")
	}
	path, err := xtables.LookUp(name)
	testenv.NoError(t, err)
	out, err := netnstest.Run(t, s.NS, input, path, args...)
	testenv.NoError(t, err)
	return out
}

// dump returns all chains and rules of the identity as comparable text.
func (s *stage) dump(t testing.TB) (out string) {
	t.Helper()
	err := s.NS.Do(func() (err error) {
		out, err = Dump(context.WithoutCancel(t.Context()), s.Options)
		return err
	})
	testenv.NoError(t, err)
	return out
}

// newRow makes a client on one side of a stage and a server with several addresses on the
// other.
func newRow(t *testing.T, s *stage) (client *netns.NS) {
	t.Helper()
	r := stagetest.NewRow(s.Lab, 8)
	// Packets that are not translated are lost at the server.
	err := s.NS.AddRoute(netns.Route{To: netip.MustParsePrefix("0.0.0.0/0"), Link: "servers", Via: r.Hosts[0]})
	testenv.NoError(t, err)
	return r.Client
}
