package iptables

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// What befalls one IP family leaves the other as it was asked for, and the runner
// knows that it does not know.
func TestOneFamilyFails(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		flag := filepath.Join(t.TempDir(), "fail")
		standIn(t, s, "if [ -e "+flag+" ]; then echo 'iptables-restore: Cannot allocate memory' >&2; exit 1; fi")
		before := append(world(v1.IPv4Protocol, 2, 2), world(v1.IPv6Protocol, 2, 2)...)
		after := append(world(v1.IPv4Protocol, 3, 2), world(v1.IPv6Protocol, 3, 2)...)
		old, next := proxy.NewSnapshot(stagetest.Node(), before...), proxy.NewSnapshot(stagetest.Node(), after...)
		fresh := newStage(t, s.Options)
		fresh.Apply(t, next)
		want := fresh.dump(t)
		for _, from := range []proxy.Snapshot{{}, old} {
			if !from.IsZero() {
				s.Apply(t, from)
			}
			untouched := s.dump(t)
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			err := s.Backend.Apply(t.Context(), from, next)
			if err == nil || errors.As(err, new(proxy.PortErrors)) || !from.IsZero() && !errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("from %d ports: got error %v, want one that blames nobody, and %v if something was known", from.Len(), err, proxy.ErrDataplaneLost)
			}
			if diff := cmp.Diff(ofFamily(untouched, "IPv4")+ofFamily(want, "IPv6"), ofFamily(s.dump(t), "IPv4")+ofFamily(s.dump(t), "IPv6")); diff != "" {
				t.Errorf("IPv4 as it was, IPv6 as wanted (-want +got):\n%s", diff)
			}
			if err := os.Remove(flag); err != nil {
				t.Fatal(err)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, next)
			if diff := cmp.Diff(want, s.dump(t)); diff != "" {
				t.Errorf("after a look at everything (-fresh +repaired):\n%s", diff)
			}
		}
	})
}

// ofFamily gives the part of a dump that is about one IP family.
func ofFamily(dump, family string) (out string) {
	for _, chain := range strings.SplitAfter(dump, "\n\n") {
		if strings.HasPrefix(chain, family) {
			out += strings.TrimRight(chain, "\n") + "\n"
		}
	}
	return out
}

// Where nobody can see what is there, nothing is changed and nobody blamed: in parts,
// each would take what others want for leftovers.
func TestLookFails(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := world(v1.IPv4Protocol, 4, 2)
		want := proxy.NewSnapshot(stagetest.Node(), all...)
		s.Apply(t, want)
		before := s.dump(t)
		count := filepath.Join(t.TempDir(), "count")
		failures := map[Flavour]string{Legacy: "1", NFT: "2"}[s.Options.Flavour]
		started := standInFor(t, s, "save", "echo >>"+count+"; if [ $(wc -l <"+count+") -le "+failures+" ]; then exit 1; fi")
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, want)
		if err == nil || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("got error %v, want one that blames nobody", err)
		}
		for _, name := range startedSince(t, started) {
			if strings.HasPrefix(name, "iptables") && strings.HasSuffix(name, "restore") {
				t.Errorf("without a look at what is there, %s was started", name)
			}
		}
		if diff := cmp.Diff(before, s.dump(t)); diff != "" {
			t.Errorf("after a look that failed (-before +after):\n%s", diff)
		}
		s.Apply(t, want)
		if n := s.Operations(t); n != 0 {
			t.Errorf("the next look took %d operations, want 0", n)
		}
	})
}

// What there is of a service port from before, which is refused now, goes.
func TestLeftoversOfRefused(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		good, bad := world(v1.IPv4Protocol, 3, 2), poisons()["absurd timeout"]
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), good...))
		want := s.dump(t)
		former := *bad
		former.Affinity = affinity.Config{Timeout: time.Hour}
		former.Frontends = append([]proxy.Frontend{stagetest.NodePort(v1.IPv4Protocol, 30_000)}, bad.Frontends...)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), append(good, &former)...))
		if s.dump(t) == want {
			t.Error("the port has no rules, so the test shows nothing")
		}
		s.Restart(t)
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(stagetest.Node(), append(good, bad)...))
		if failed, ok := errors.AsType[proxy.PortErrors](err); !ok || len(failed) != 1 || failed[bad.Name] == nil {
			t.Errorf("got error %v, want one that names %s alone", err, bad.Name)
		}
		if diff := cmp.Diff(want, s.dump(t)); diff != "" {
			t.Errorf("the rules of the others (-want +got):\n%s", diff)
		}
		s.Applied = proxy.NewSnapshot(stagetest.Node(), good...)
		again := proxy.NewSnapshot(stagetest.Node(), append(good, &former)...)
		s.Apply(t, again)
		s.holds(t, again, "once the port can be programmed again")
		s.run(t, "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		s.Applied = proxy.Snapshot{}
		s.Apply(t, again)
		s.holds(t, again, "once others have removed everything")
	})
}
