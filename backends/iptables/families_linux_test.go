package iptables

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// If the existing rules cannot be read, nothing is changed and no service port is named: a
// commit in parts would remove rules of the other parts.
func TestListingFails(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		all := newPorts(v1.IPv4Protocol, 4, 2)
		want := proxy.NewSnapshot(stagetest.Node(), all...)
		s.Apply(t, want)
		before := s.dump(t)
		count := filepath.Join(t.TempDir(), "count")
		failures := map[Flavour]string{Legacy: "1", NFT: "2"}[s.Options.Flavour]
		started := stubProgram(t, s, "save", "echo >>"+count+"; if [ $(wc -l <"+count+") -le "+failures+" ]; then exit 1; fi")
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, want)
		if err == nil || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("Apply: got error %v, want one that is not a PortErrors", err)
		}
		for _, name := range startedSince(t, started) {
			if strings.HasPrefix(name, "iptables") && strings.HasSuffix(name, "restore") {
				t.Errorf("started programs without a listing: got %s, want none that writes", name)
			}
		}
		if diff := cmp.Diff(before, s.dump(t)); diff != "" {
			t.Errorf("rules after a listing that failed (-before +after):\n%s", diff)
		}
		s.Apply(t, want)
		if n := s.Operations(t); n != 0 {
			t.Errorf("operations of the next Apply: got %d, want 0", n)
		}
	})
}

// Earlier rules of a service port that is refused now are removed.
func TestLeftoversOfRefused(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		good, bad := newPorts(v1.IPv4Protocol, 3, 2), refusedPort()
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), good...))
		want := s.dump(t)
		former := *bad
		former.Affinity = affinity.Config{Timeout: time.Hour}
		former.Frontends = append([]proxy.Frontend{stagetest.NodePort(v1.IPv4Protocol, 30_000)}, bad.Frontends...)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), append(good, &former)...))
		if s.dump(t) == want {
			t.Error("rules of the port: got none, want some")
		}
		s.Restart(t)
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(stagetest.Node(), append(good, bad)...))
		if failed, ok := errors.AsType[proxy.PortErrors](err); !ok || len(failed) != 1 || failed[bad.Name] == nil {
			t.Errorf("Apply: got error %v, want one that names %s alone", err, bad.Name)
		}
		testenv.Same(t, want, s.dump(t), "rules of the other ports")
		s.Applied = proxy.NewSnapshot(stagetest.Node(), good...)
		again := proxy.NewSnapshot(stagetest.Node(), append(good, &former)...)
		s.Apply(t, again)
		s.holds(t, again, "after the port became valid again")
		s.run(t, "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		s.Applied = proxy.Snapshot{}
		s.Apply(t, again)
		s.holds(t, again, "after another program removed everything")
	})
}

// A service port whose rules the kernel of the legacy flavour refuses after a restart, without a
// reason, keeps its earlier rules. The other ports get theirs.
func TestLeftoversOfAShortage(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		if s.Options.Flavour != Legacy {
			return // This flavour names reasons.
		}
		const refused = `script=$(cat)
			line=$(echo "$script" | grep -n ^COMMIT | sed -n '1s/:.*//p')
			if echo "$script" | grep -q -- "-j VIPKIT-FW-"; then echo "iptables-restore: line $line failed" >&2; exit 1; fi
			echo "$script" | exec $real "$@"; exit`
		flag := failing(t, s, refused)
		port, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 1, 2)
		balancer := newPort(v1.IPv4Protocol, 20_000, 0).Frontends[0]
		balancer.Kind = proxy.LoadBalancer
		port.Frontends = append(port.Frontends, balancer)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port, other))
		s.Restart(t)
		setFlag(t, flag)
		restricted := *port
		restricted.Frontends = slices.Clone(port.Frontends)
		f := &restricted.Frontends[len(restricted.Frontends)-1]
		f.Restricted, f.AllowedSources = true, snapshots.Prefixes("192.0.2.0/24")
		next := proxy.NewSnapshot(stagetest.Node(), &restricted, moved(other, 1000))
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, next)
		if failed, ok := errors.AsType[proxy.PortErrors](err); !ok || len(failed) != 1 || failed[port.Name] == nil {
			t.Errorf("Apply: got error %v, want one that names %s alone", err, port.Name)
		}
		rules := s.dump(t)
		for _, want := range []string{f.Addr.Addr().String() + "/32", moved(other, 1000).Cluster[0].Addr.String()} {
			if !strings.Contains(rules, want) {
				t.Errorf("rules: got none with %s, want one, in:\n%s", want, rules)
			}
		}
		testenv.NoError(t, os.Remove(flag))
		s.Applied = proxy.Snapshot{}
		s.Apply(t, next)
		s.holds(t, next, "after the shortage")
	})
}

// withoutIPv6 tells a process of the test program that it must make all attempts to open an IPv6
// socket fail.
const withoutIPv6 = "VIPKIT_TEST_WITHOUT_IPV6"

// On a kernel without IPv6, IPv4 Services are served, IPv6 Services are left out with one
// problem of the node, and Cleanup works.
func TestKernelWithoutIPv6(t *testing.T) {
	if os.Getenv(withoutIPv6) == "" {
		NeedPrograms(t, Options{Flavour: Legacy})
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKernelWithoutIPv6$", "-test.v")
		cmd.Env = append(os.Environ(), withoutIPv6+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	netnstest.DenyIPv6(t)
	for _, families := range [][]v1.IPFamily{{v1.IPv4Protocol}, {v1.IPv4Protocol, v1.IPv6Protocol}} {
		s := &stage{stagetest.NewStage(t, Options{Flavour: Legacy}, New)}
		var ports []*proxy.ServicePort
		for _, f := range families {
			ports = append(ports, newPorts(f, 2, 2)...)
		}
		snapshot := proxy.NewSnapshot(stagetest.Node(), ports...)
		s.Apply(t, snapshot)
		if out := s.run(t, "", "iptables-save", "-t", "nat"); !strings.Contains(out, stagetest.ClusterIP(v1.IPv4Protocol, 0).String()) {
			t.Errorf("%v: rules of IPv4: got\n%s\nwant the Services", families, out)
		}
		var named []string
		for _, p := range s.Backend.Abilities().CheckNode(snapshot) {
			if p.Field == "ipv6.disable" {
				named = append(named, p.Error())
			}
		}
		if len(named) != len(families)-1 {
			t.Errorf("%v: problems of the node: got %q, want %d", families, named, len(families)-1)
		}
		if err := s.Backend.Cleanup(t.Context()); err != nil {
			t.Errorf("%v: Cleanup: %v", families, err)
		}
	}
}
