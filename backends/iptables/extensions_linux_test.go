package iptables

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// libraries returns a folder with the extensions of iptables, for all programs of the test.
func libraries(t *testing.T) string {
	t.Helper()
	all, err := filepath.Glob("/usr/lib*/*/xtables/lib*.so")
	if more, _ := filepath.Glob("/usr/lib*/xtables/lib*.so"); err != nil || len(all)+len(more) == 0 {
		testenv.CannotRun(t, "the extensions of iptables are not in a known folder")
	} else {
		all = append(all, more...)
	}
	folder := t.TempDir()
	for _, path := range all {
		testenv.NoError(t, os.Symlink(path, filepath.Join(folder, filepath.Base(path))))
	}
	t.Setenv("XTABLES_LIBDIR", folder)
	return folder
}

// hide makes extensions unavailable until restore is called.
func hide(t *testing.T, folder string, names ...string) (restore func()) {
	t.Helper()
	var hidden []string
	for _, name := range names {
		found, err := filepath.Glob(filepath.Join(folder, "lib*_"+name+".so"))
		if err != nil || len(found) == 0 {
			t.Fatalf("extension %s: %v", name, err)
		}
		hidden = append(hidden, found...)
	}
	move := func(from, to string) {
		for _, path := range hidden {
			testenv.NoError(t, os.Rename(path+from, path+to))
		}
	}
	move("", ".hidden")
	return func() { move(".hidden", "") }
}

// If an extension is missing that all rules need, a single error reports it, after few
// programs and without naming service ports. Once the extension is available, Apply succeeds.
func TestMissingExtension(t *testing.T) {
	for _, names := range [][]string{{"tcp"}, {"comment"}, {"statistic"}, {"REJECT"}, {"conntrack", "MARK"}} {
		eachFlavourInTurn(t, func(t *testing.T, s *stage) {
			restore := hide(t, libraries(t), names...)
			started := stubRestore(t, s, "")
			all := proxy.NewSnapshot(stagetest.Node(), append(newPorts(v1.IPv4Protocol, 40, 2), newPorts(v1.IPv6Protocol, 40, 2)...)...)
			err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, all)
			if !errors.Is(err, proxy.ErrUnsupported) || !errors.Is(err, backends.ErrUnavailable) || errors.As(err, new(proxy.PortErrors)) || errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("without %v: got error %v, want %v and no PortErrors", names, err, proxy.ErrUnsupported)
			}
			for _, name := range names {
				if err == nil || !strings.Contains(err.Error(), name+" is missing: load the kernel module ") {
					t.Errorf("without %v: got error %v, want one that names %s", names, err, name)
				}
			}
			if n := len(startedSince(t, started)); n > 50 {
				t.Errorf("without %v: started programs: got %d, want at most 50, a few for each extension", names, n)
			}
			restore()
			s.Apply(t, all)
			s.holds(t, all, "with all extensions")
		})
	}
}

// If an extension is missing that only some service ports need, only these are refused, until
// the extension is available at a resync.
func TestMissingExtensionOfSome(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		restore := hide(t, libraries(t), "recent", "sctp")
		s.Restart(t)
		all := newPorts(v1.IPv4Protocol, 40, 2)
		plain := proxy.NewSnapshot(stagetest.Node(), all[20:]...)
		for i, p := range all[:20] {
			if p.Affinity = (affinity.Config{Timeout: time.Hour}); i%2 == 0 {
				p.Affinity, p.Name.Protocol = affinity.Config{}, v1.ProtocolSCTP
			}
		}
		mixed := proxy.NewSnapshot(stagetest.Node(), all...)
		for _, from := range []proxy.Snapshot{{}, plain} {
			s.Restart(t)
			s.Apply(t, plain)
			err := s.Backend.Apply(t.Context(), from, mixed)
			for tries := 0; tries < 2 && errors.Is(err, proxy.ErrDataplaneLost); tries++ { // as a Runner does
				err = s.Backend.Apply(t.Context(), proxy.Snapshot{}, mixed)
			}
			failed, ok := errors.AsType[proxy.PortErrors](err)
			if !ok || len(failed) != 20 || errors.Is(err, proxy.ErrDataplaneLost) {
				t.Fatalf("Apply: got error %v, want one of 20 service ports", err)
			}
			for _, p := range all[:20] {
				want := "the match recent is missing: load the kernel module xt_recent"
				if p.Name.Protocol == v1.ProtocolSCTP {
					want = "the match sctp is missing: load the kernel module xt_sctp"
				}
				if got := failed[p.Name]; !errors.Is(got, proxy.ErrUnsupported) || !strings.Contains(got.Error(), want) {
					t.Errorf("%s: got error %v, want one that contains %q", p.Name, got, want)
				}
			}
			s.holds(t, plain, "without refused ports")
		}
		restore()
		if !s.Backend.Abilities().Drifted(t.Context()) {
			t.Error("while extensions are missing: drifted: got false, want true, so that a resync tries them again")
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, mixed)
		s.holds(t, mixed, "with all extensions")
	})
}

// If the kernel refuses everything, as when it is out of memory, and the programs do not report why,
// no extension counts as missing.
func TestRefusalsWithoutReason(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		flag := failing(t, s, `cat >/dev/null; echo "iptables-restore: line 4 failed" >&2; exit 1`)
		setFlag(t, flag)
		all := proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 4, 2)...)
		if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, all); err == nil || errors.Is(err, proxy.ErrUnsupported) {
			t.Errorf("while everything is refused: got error %v, want an error other than %v", err, proxy.ErrUnsupported)
		}
		testenv.NoError(t, os.Remove(flag))
		s.Apply(t, all)
		s.holds(t, all, "without refusals")
	})
}
