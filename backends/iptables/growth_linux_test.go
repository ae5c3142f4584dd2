package iptables

import (
	"errors"
	"fmt"
	"maps"
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
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// growing is a world that changes its size.
type growing struct {
	*stage
	r *rand.Rand
	// flag names the fault that befalls the next programs, as long as the file is there.
	flag string
	// services and endpoints are how many there are of the one, and of one of them.
	services, endpoints int
	node                *proxy.Node
	told                []string
}

// faults are what may happen to a program, as shell commands; it is run after them unless
// they end it. One that begins with "once" happens to one program only.
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
	standIn(t, g.stage, "flag="+g.flag+`; if [ -e $flag ]; then
fault=$(cat $flag); case "$fault" in once*) rm $flag;; esac; eval "${fault#once }"; fi`)
	return g
}

// sizes are the numbers of services and of endpoints around which something is done in
// another way: rules that are removed one by one or with the whole chain, and texts that
// fit into a pipe or do not.
func sizes() []int {
	var all []int
	for _, limit := range []int{1, manyRemovals, many, 2 * many, 400} {
		all = append(all, limit-1, limit, limit+1)
	}
	return all
}

// world is what is wanted: among services with two endpoints each one with many, one with
// affinity, and some with chains of their own for external addresses.
func (g *growing) world() proxy.Snapshot {
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

// changeNode makes the node another one.
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

// settled is what is known after an Apply, as a Runner sees it.
func settled(old, want proxy.Snapshot, err error) proxy.Snapshot {
	failed, some := errors.AsType[proxy.PortErrors](err)
	switch {
	case err == nil:
		return want
	case errors.Is(err, proxy.ErrDataplaneLost):
		return proxy.Snapshot{}
	case some:
		return want.Revert(old, slices.Collect(maps.Keys(failed))...)
	}
	return old
}

// step has something else wanted, with a fault and a bad service port on the way or
// without, and holds that the next Apply makes it be.
func (g *growing) step(t *testing.T) {
	t.Helper()
	if g.r.IntN(4) == 0 {
		g.changeNode()
	}
	want := g.world()
	fault := "none"
	if g.r.IntN(2) == 0 {
		fault = faults()[g.r.IntN(len(faults()))]
		if err := os.WriteFile(g.flag, []byte(fault), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked := want
	if g.r.IntN(4) == 0 {
		asked = proxy.NewSnapshot(g.node, append(slices.Collect(want.All()), poisons()["absurd timeout"])...)
	}
	err := g.Backend.Apply(t.Context(), g.Applied, asked)
	g.told = append(g.told, fmt.Sprintf("%d services, %d endpoints, %t known, fault %s: %.200v", g.services, g.endpoints, !g.Applied.IsZero(), fault, err))
	if errors.Is(err, proxy.ErrUnsupported) && !errors.As(err, new(proxy.PortErrors)) {
		t.Errorf("%s: an agent would end", g.told[len(g.told)-1])
	}
	g.Applied = settled(g.Applied, asked, err)
	if err := os.RemoveAll(g.flag); err != nil {
		t.Fatal(err)
	}
	err = g.Backend.Apply(t.Context(), g.Applied, want)
	if errors.Is(err, proxy.ErrDataplaneLost) && strings.Contains(fault, "-F") {
		g.Applied = proxy.Snapshot{} // somebody else has been there
		err = g.Backend.Apply(t.Context(), g.Applied, want)
	}
	if err != nil {
		t.Fatalf("the next Apply: got error %v, want none; before it\n%s", err, strings.Join(g.told, "\n"))
	}
	g.Applied = want
	if strings.Contains(fault, "-F") {
		g.Applied = proxy.Snapshot{}
		g.Apply(t, want)
	}
}

// holdsNow compares what there is with what a new backend makes, and has a restart write
// nothing.
func (g *growing) holdsNow(t *testing.T, want proxy.Snapshot) {
	t.Helper()
	fresh := newStage(t, g.Options)
	fresh.Apply(t, want)
	if diff := cmp.Diff(fresh.dump(t), g.dump(t)); diff != "" {
		t.Fatalf("after\n%s\nthe rules are (-fresh +grown):\n%s", strings.Join(g.told, "\n"), diff)
	}
	g.Restart(t)
	g.Apply(t, want)
	if n := g.Operations(t); n != 0 {
		t.Fatalf("after\n%s\na restart took %d operations, want 0", strings.Join(g.told, "\n"), n)
	}
}

// From any size to any other, around all limits, at once or step by step, with changes of
// the node, other chains, bad service ports and faults in the same Apply, the next Apply
// makes everything as it should be.
func TestGrowth(t *testing.T) {
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			g := newGrowing(t, Options{Flavour: flavour, Families: []v1.IPFamily{v1.IPv4Protocol}})
			all := sizes()
			// More than the widest pipe takes, and as many endpoints as Services rarely have.
			for _, size := range [][2]int{{0, 0}, {3000, 1100}, {0, 0}} {
				g.services, g.endpoints = size[0], size[1]
				g.step(t)
				g.holdsNow(t, g.Applied)
			}
			for round := range 40 {
				services, endpoints := all[g.r.IntN(len(all))], all[g.r.IntN(len(all))]
				if round%10 == 9 {
					services, endpoints = 0, 0
				}
				if g.r.IntN(2) == 0 { // not at once
					g.services += g.r.IntN(2*max(services-g.services, g.services-services)+1) - max(services-g.services, g.services-services)
					g.services, g.endpoints = max(0, g.services), (g.endpoints+endpoints)/2
					g.step(t)
				}
				g.services, g.endpoints = services, endpoints
				g.step(t)
				if round%4 == 0 {
					g.holdsNow(t, g.Applied)
					g.told = nil
				}
			}
		})
	}
}
