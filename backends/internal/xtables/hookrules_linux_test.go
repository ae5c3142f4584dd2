package xtables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// refusing returns a backend that cannot write the rules of one service port.
func refusing(flavour Flavour, name proxy.ServicePortName) Config {
	c := config(flavour)
	f := &c.Families[0]
	render := f.Render
	f.Render = func(env backends.Env, port *proxy.ServicePort, out []Object) []Object {
		if port != nil && port.Name == name {
			out = append(out, Refusal(errors.New("refused by the test")))
		}
		return render(env, port, out)
	}
	for _, name := range []string{"comment", "conntrack", "addrtype", "statistic", "tcp", "MARK", "DNAT", "REJECT"} {
		f.Extensions = append(f.Extensions, Extension{Name: name})
	}
	return c
}

// Rules of other programs that are invalid in the hooks of the jumps to their chain do not matter if a
// service port is refused at the same time, so that the chains of the others are not written in the
// commit that adds the jumps.
func TestRulesInvalidInHooksBesideRefusedPort(t *testing.T) {
	t.Parallel()
	for _, flavour := range []Flavour{Legacy, NFT} {
		t.Run(string(flavour), func(t *testing.T) {
			var ports []*proxy.ServicePort
			for i := range 4 {
				ports = append(ports, stagetest.Port(v1.IPv4Protocol, i, 2))
			}
			refused := ports[3].Name
			s := newStage(t, refusing(flavour, refused))
			all := proxy.NewSnapshot(stagetest.Node(), ports...)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), ports[:3]...))
			want := s.dump(t)
			chain := ""
			for line := range strings.Lines(want) {
				if at := strings.Index(line, "VIPKIT-SVC-"); at >= 0 {
					chain = strings.Fields(line[at:])[0]
				}
			}
			for _, body := range []string{"-m owner --uid-owner 0 -j RETURN", ""} {
				damage := "*nat\n-F PREROUTING\n-F INPUT\n-F OUTPUT\n-F POSTROUTING\n"
				if body != "" {
					damage += "-I " + chain + " " + body + "\n"
				}
				s.run(t, damage+"COMMIT\n", "iptables-restore", "--noflush", "-w", "5")
				if flavour == NFT && body == "" {
					s.nft(t, "insert rule ip nat "+chain+" fib daddr oif 1 return\n")
				}
				err := s.Backend.Apply(context.WithoutCancel(t.Context()), proxy.Snapshot{}, all)
				failed, ok := errors.AsType[proxy.PortErrors](err)
				if _, isRefused := failed[refused]; !ok || len(failed) != 1 || !isRefused {
					t.Errorf("chain %s with %q: got error %v, want one that names only %v", chain, body, err, refused)
				}
				if diff := cmp.Diff(want, s.dump(t)); diff != "" {
					t.Errorf("chain %s with %q: rules (-without the refused port +with):\n%s", chain, body, diff)
				}
			}
		})
	}
}
