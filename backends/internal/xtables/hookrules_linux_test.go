package xtables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// hooksOf returns the kernel's own chains of a table.
func hooksOf(t Table) string {
	return [...]string{NAT: "PREROUTING INPUT OUTPUT POSTROUTING", Filter: "INPUT FORWARD OUTPUT", Mangle: "PREROUTING INPUT FORWARD OUTPUT POSTROUTING"}[t]
}

// detach returns lines for iptables-restore that empty the kernel's own chains of a table, and
// add rules to a chain.
func detach(table Table, chain string, rules ...string) string {
	out := "*" + table.String() + "\n"
	for hook := range strings.FieldsSeq(hooksOf(table)) {
		out += "-F " + hook + "\n"
	}
	for _, rule := range rules {
		out += "-I " + chain + " " + rule + "\n"
	}
	return out + "COMMIT\n"
}

// refusesJumps reports whether the kernel refuses a jump to a chain from one of its own chains.
func (s *stage) refusesJumps(t *testing.T, program string, table Table, chain string) bool {
	t.Helper()
	refused := false
	for hook := range strings.FieldsSeq(hooksOf(table)) {
		jump := "*" + table.String() + "\n-I " + hook + " -j " + chain + "\nCOMMIT\n"
		if _, err := s.try(t, jump, program, "--noflush", "-w", "5"); err != nil {
			refused = true
			continue
		}
		s.run(t, strings.Replace(jump, "-I ", "-D ", 1), program, "--noflush", "-w", "5")
	}
	return refused
}

// Rules of other programs that are invalid in the hooks of the jumps to their chain are removed,
// in all tables, whether the jumps exist or not.
func TestConstantWithRulesInvalidInHooks(t *testing.T) {
	t.Parallel()
	for _, flavour := range []Flavour{Legacy, NFT} {
		t.Run(string(flavour), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, constant(flavour, false))
			none := proxy.NewSnapshot(&proxy.Node{})
			s.Apply(t, none)
			want := s.dump(t)
			for prefix, family := range map[string]string{"iptables": "ip", "ip6tables": "ip6"} {
				for table, chains := range map[Table]string{NAT: "MARK MASQUERADE", Filter: "REFUSE", Mangle: "FWMARK NOTHING"} {
					for chain := range strings.FieldsSeq(chains) {
						chain = "VIPKIT-" + chain
						s.run(t, detach(table, chain, "-m owner --uid-owner 0 -j RETURN", "-m socket --transparent -j RETURN"), prefix+"-restore", "--noflush", "-w", "5")
						if flavour == NFT {
							for _, body := range []string{"socket transparent 1 return", "fib daddr oif 1 return", "synproxy mss 1460", "meta pkttype set host"} {
								s.nft(t, "insert rule "+family+" "+table.String()+" "+chain+" "+body+"\n")
							}
						}
						if !s.refusesJumps(t, prefix+"-restore", table, chain) {
							t.Errorf("%s %v: jumps to %s from the kernel's own chains: got none refused, want some", prefix, table, chain)
						}
						err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, none)
						if diff := cmp.Diff(want, s.dump(t)); err != nil || diff != "" {
							t.Fatalf("%s %v %s: got error %v, rules (-first load +repaired):\n%s", prefix, table, chain, err, diff)
						}
					}
				}
			}
		})
	}
}

// refusing returns a backend that cannot write the rules of one service port.
func refusing(flavour Flavour, name proxy.ServicePortName) Config {
	c := config(flavour)
	f := &c.Families[0]
	render := f.Render
	f.Render = func(node *proxy.Node, port *proxy.ServicePort, out []Object) []Object {
		if port != nil && port.Name == name {
			out = append(out, Refusal(errors.New("refused by the test")))
		}
		return render(node, port, out)
	}
	for _, name := range []string{"comment", "conntrack", "addrtype", "statistic", "tcp", "MARK", "DNAT", "REJECT"} {
		f.Extensions = append(f.Extensions, Extension{Name: name})
	}
	return c
}

// Such rules do not matter either if a service port is refused at the same time, so that the
// chains of the others are not written in the commit that adds the jumps.
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
			chain, bodies := "", []string{"-m owner --uid-owner 0 -j RETURN", ""}
			for line := range strings.Lines(want) {
				if at := strings.Index(line, "VIPKIT-SVC-"); at >= 0 {
					chain = strings.Fields(line[at:])[0]
				}
			}
			for _, body := range bodies {
				rules := []string{body}
				if body == "" {
					rules = nil
				}
				s.run(t, detach(NAT, chain, rules...), "iptables-restore", "--noflush", "-w", "5")
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
