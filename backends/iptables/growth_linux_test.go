package iptables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// growing is a stage whose snapshot changes its size.
type growing struct {
	*stage
	r *rand.Rand
	// flag is a file with the fault of the next programs, as long as it exists.
	flag string
	// services is the number of service ports, and endpoints that of the largest one.
	services, endpoints int
	node                *proxy.Node
	// steps describes the steps since the last check.
	steps []string
}

// faults returns faults of a program, as shell commands that run before the program and may
// end it. A fault that begins with "once" affects only one program.
func faults() []string {
	return []string{
		"cat >/dev/null; echo 'iptables-restore: line 2 failed' >&2; exit 1",
		"cat >/dev/null; echo 'iptables-restore: Cannot allocate memory' >&2; exit 4",
		"cat >/dev/null; echo 'Another app is currently holding the xtables lock; waited 5s' >&2; exit 4",
		"sed '/^COMMIT/q' | $real \"$@\"; exit 1",
		"$real \"$@\"; exit 1",
		"$real \"$@\"; kill -KILL $$",
		"kill -KILL $$",
		"once cat >/dev/null; echo 'iptables-restore: line 2 failed' >&2; exit 1",
		"once sed '/^COMMIT/q' | $real \"$@\"; exit 1",
		"once $real \"$@\"; kill -KILL $$",
		"once $real \"$@\"; status=$?; printf '*nat\\n-F\\nCOMMIT\\n*filter\\n-F\\nCOMMIT\\n' | $real --noflush -w 5; exit $status",
	}
}

func newGrowing(t *testing.T, o Options) *growing {
	t.Helper()
	g := &growing{stage: newStage(t, o), r: testenv.Random(t), node: stagetest.Node(), flag: filepath.Join(t.TempDir(), "fault")}
	stubRestore(t, g.stage, "flag="+g.flag+`; if [ -e $flag ]; then
fault=$(cat $flag); case "$fault" in once*) rm $flag;; esac; eval "${fault#once }"; fi`)
	return g
}

// sizes returns numbers of services and endpoints around thresholds: whether rules are removed
// one by one or with the whole chain, and whether a script fits into a pipe.
func sizes() []int {
	var all []int
	for _, limit := range []int{1, xtables.ManyRemovals, 2 * xtables.ManyRemovals, 400} {
		all = append(all, limit-1, limit, limit+1)
	}
	return all
}

// snapshot returns services with up to two endpoints each, some of them with chains for
// external addresses, and two services with many endpoints, one of these with affinity.
func (g *growing) snapshot() proxy.Snapshot {
	var all []*proxy.ServicePort
	for i := range g.services {
		p := newPort(v1.IPv4Protocol, 10+i, i%3)
		if i%5 == 4 && len(p.Cluster) > 0 {
			p.Frontends = append(p.Frontends, stagetest.NodePort(v1.IPv4Protocol, uint16(30_000+i)))
			p.Frontends = append(p.Frontends, proxy.Frontend{
				Kind: proxy.LoadBalancer, Addr: stagetest.Port(v1.IPv4Protocol, 20_000+i, 0).Frontends[0].Addr, Restricted: true,
				AllowedSources: stagetest.Prefixes("192.0.2.0/24"), FromInside: stagetest.Forward(proxy.MasqueradeAlways), FromOutside: stagetest.Forward(proxy.MasqueradeAlways),
			})
		}
		all = append(all, p)
	}
	for i, sticks := range []bool{false, true} {
		p := newPort(v1.IPv4Protocol, i, g.endpoints>>i)
		for e := range p.Cluster {
			p.Cluster[e] = &endpoints.Endpoint{Addr: stagetest.Endpoint(v1.IPv4Protocol, 100_000*(i+1)+e, 8080).Addr}
		}
		if sticks {
			p.Affinity = affinity.Config{Timeout: time.Hour}
		}
		all = append(all, p)
	}
	return proxy.NewSnapshot(g.node, all...)
}

// changeNode sets a random node.
func (g *growing) changeNode() {
	node := stagetest.Node()
	switch g.r.IntN(4) {
	case 0:
		node.LocalTraffic = proxy.LocalTraffic{InterfacePrefix: "veth"}
	case 1:
		node.NodePorts = proxy.NodePortAddresses{Prefixes: stagetest.Prefixes("172.18.0.0/24")}
	case 2:
		node.ServiceCIDRs = nil
	}
	g.node = node
}

// step applies a changed snapshot, sometimes with a fault or a refused service port, and
// checks that the next Apply succeeds.
func (g *growing) step(t *testing.T) {
	t.Helper()
	if g.r.IntN(4) == 0 {
		g.changeNode()
	}
	want := g.snapshot()
	fault := "none"
	if g.r.IntN(2) == 0 {
		fault = faults()[g.r.IntN(len(faults()))]
		testenv.NoError(t, os.WriteFile(g.flag, []byte(fault), 0o600))
	}
	requested := want
	if g.r.IntN(4) == 0 {
		requested = proxy.NewSnapshot(g.node, append(slices.Collect(want.All()), refusedPorts()["absurd timeout"])...)
	}
	err := g.Backend.Apply(t.Context(), g.Applied, requested)
	g.steps = append(g.steps, fmt.Sprintf("%d services, %d endpoints, %t known, fault %s: %.200v", g.services, g.endpoints, !g.Applied.IsZero(), fault, err))
	if errors.Is(err, proxy.ErrUnsupported) && !errors.As(err, new(proxy.PortErrors)) {
		t.Errorf("%s: got %v, with which an agent would end", g.steps[len(g.steps)-1], proxy.ErrUnsupported)
	}
	g.Applied = g.Applied.Achieved(requested, err)
	testenv.NoError(t, os.RemoveAll(g.flag))
	err = g.Backend.Apply(t.Context(), g.Applied, want)
	if errors.Is(err, proxy.ErrDataplaneLost) && strings.Contains(fault, "-F") {
		g.Applied = proxy.Snapshot{} // the fault has removed the rules
		err = g.Backend.Apply(t.Context(), g.Applied, want)
	}
	if err != nil {
		t.Fatalf("the next Apply: got error %v, want none, after\n%s", err, strings.Join(g.steps, "\n"))
	}
	g.Applied = want
	if strings.Contains(fault, "-F") {
		g.Applied = proxy.Snapshot{}
		g.Apply(t, want)
	}
}

// checkRules compares the rules with those of a first load, and checks that a restart writes
// nothing.
func (g *growing) checkRules(t *testing.T, want proxy.Snapshot) {
	t.Helper()
	fresh := newStage(t, g.Options)
	fresh.Apply(t, want)
	if diff := cmp.Diff(fresh.dump(t), g.dump(t)); diff != "" {
		t.Fatalf("after\n%s\nrules (-first load +grown):\n%s", strings.Join(g.steps, "\n"), diff)
	}
	g.Restart(t)
	g.Apply(t, want)
	if n := g.Operations(t); n != 0 {
		t.Fatalf("after\n%s\noperations of a restart: got %d, want 0", strings.Join(g.steps, "\n"), n)
	}
}

// The backend changes from any size to any other, around all thresholds, at once or step by
// step. After changes of the node, refused service ports and faults in the same Apply, the
// next Apply results in the wanted rules.
func TestGrowth(t *testing.T) {
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			NeedLargeTransactions(t, flavour)
			g := newGrowing(t, Options{Flavour: flavour, Families: []v1.IPFamily{v1.IPv4Protocol}})
			all := sizes()
			// A script that exceeds the largest pipe, and more endpoints than most Services have.
			for _, size := range [][2]int{{0, 0}, {3000, 1100}, {0, 0}} {
				g.services, g.endpoints = size[0], size[1]
				g.step(t)
				g.checkRules(t, g.Applied)
			}
			for round := range 40 {
				services, endpoints := all[g.r.IntN(len(all))], all[g.r.IntN(len(all))]
				if round%10 == 9 {
					services, endpoints = 0, 0
				}
				if g.r.IntN(2) == 0 { // with a step in between
					g.services += g.r.IntN(2*max(services-g.services, g.services-services)+1) - max(services-g.services, g.services-services)
					g.services, g.endpoints = max(0, g.services), (g.endpoints+endpoints)/2
					g.step(t)
				}
				g.services, g.endpoints = services, endpoints
				g.step(t)
				if round%4 == 0 {
					g.checkRules(t, g.Applied)
					g.steps = nil
				}
			}
		})
	}
}
