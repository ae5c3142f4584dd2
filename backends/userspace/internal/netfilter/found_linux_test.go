package netfilter

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A new process finds the frontends of the one before, also if it must replace the tables because
// another program has changed them.
func TestFrontendsOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"adopted":  "",
		"replaced": "add table ip vipkit-userspace { flags dormant; }\nrename chain ip6 vipkit-userspace services theirs\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.NewNS(t)
			apply := func(next proxy.Snapshot) *Capture {
				t.Helper()
				c := netnstest.Open(t, ns, func() (*Capture, error) { return New(configIn(t, ns), false) })
				testenv.NoError(t, backends.New(c.Render, backends.Target[Key, Value](c)).Apply(t.Context(), proxy.Snapshot{}, next))
				return c
			}
			var ports []*proxy.ServicePort
			var want []string
			for _, f := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
				p := stagetest.Port(f, 1, 1)
				p.Name.Protocol = v1.ProtocolUDP
				p.Frontends = append(p.Frontends, stagetest.NodePort(f, 30_053))
				ports = append(ports, p)
				for _, front := range p.Frontends {
					want = append(want, front.Addr.String())
				}
			}
			apply(proxy.NewSnapshot(stagetest.Node(), ports...))
			if out, err := netnstest.Run(t, ns, script, netnstest.NFT(t), "-f", "-"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var got []string
			for _, p := range apply(proxy.NewSnapshot(stagetest.Node())).found.Take() {
				for _, front := range p.Frontends {
					got = append(got, front.Addr.String())
				}
			}
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
