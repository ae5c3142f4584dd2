package xtables

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

// stage is a network namespace with a backend in it.
type stage struct{ *stagetest.Stage[Config] }

// config returns a backend with the rules of [Names.render].
func config(flavour Flavour) Config {
	n := newNames("vipkit")
	return Config{
		Options: Options{Flavour: flavour, LockWait: DefaultLockWait}, Names: n,
		Families: []Family{{Family: v1.IPv4Protocol, Render: n.render}},
	}
}

// newStage makes a stage. It skips the test if the programs of the flavour are not installed,
// or the kernel lacks their tables.
func newStage(t testing.TB, c Config) *stage {
	t.Helper()
	err := netnstest.NewNS(t).Do(func() error {
		return stagetest.MakeHooks(t.Context(), string(c.Options.Flavour), "*nat\n:OUTPUT ACCEPT\nCOMMIT\n")
	})
	if errors.Is(err, exec.ErrNotFound) {
		testenv.CannotRun(t, err.Error())
	}
	testenv.NoError(t, err)
	return &stage{stagetest.NewStage(t, c, func(c Config) (proxy.Backend, error) {
		b, err := New(c)
		if err == nil {
			t.Cleanup(func() { _ = b.Close() }) // nothing was written
		}
		return b, err
	})}
}

// run runs a program, such as ip6tables-save, of the stage's flavour, and returns its output.
func (s *stage) run(t testing.TB, input, name string, args ...string) string {
	t.Helper()
	out, err := s.try(t, input, name, args...)
	testenv.NoError(t, err)
	return out
}

// try does the same, and returns the error.
func (s *stage) try(t testing.TB, input, name string, args ...string) (string, error) {
	t.Helper()
	stem, what, _ := strings.Cut(name, "-")
	path, err := LookUp(strings.TrimSuffix(stem+"-"+string(s.Options.Options.Flavour)+"-"+what, "-"))
	testenv.NoError(t, err)
	return netnstest.Run(t, s.NS, input, path, args...)
}

// nft loads a ruleset.
func (s *stage) nft(t *testing.T, ruleset string) {
	t.Helper()
	if _, err := netnstest.Run(t, s.NS, ruleset, netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// dump returns all chains and rules of the consumer.
func (s *stage) dump(t *testing.T) (out string) {
	t.Helper()
	err := s.NS.Do(func() (err error) {
		n := s.Options.Names
		owns := func(chain string) bool { return n.Owns(NAT, chain) || n.Owns(Filter, chain) || n.Owns(Mangle, chain) }
		out, err = stagetest.DumpChains(context.WithoutCancel(t.Context()), string(s.Options.Options.Flavour), owns, n.IsOpen)
		return err
	})
	testenv.NoError(t, err)
	return out
}
