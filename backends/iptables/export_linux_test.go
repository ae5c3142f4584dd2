package iptables

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// NeedPrograms skips a test if the programs of a flavour are not installed, or the kernel
// lacks their tables.
func NeedPrograms(t testing.TB, o Options) {
	t.Helper()
	err := netnstest.NewNS(t).Do(func() error { return Prepare(t.Context(), o) })
	if errors.Is(err, exec.ErrNotFound) {
		testenv.CannotRun(t, err.Error())
	}
	testenv.NoError(t, err)
}

// NeedLargeTransactions skips a test with more rules at once than the socket of
// iptables-nft-restore takes in a user namespace, where no program may enlarge its buffer.
func NeedLargeTransactions(t testing.TB, f Flavour) {
	t.Helper()
	if f == NFT {
		netnstest.NeedRoot(t, "large transactions of nft and iptables")
	}
}

// hooks are the kernel's own chains that a backend uses.
const hooks = "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n" +
	"*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"

// Prepare makes those of the kernel's own chains that a backend uses, in the namespace of the
// calling thread.
func Prepare(ctx context.Context, o Options) error {
	return stagetest.MakeHooks(ctx, string(o.Flavour), hooks)
}

// Dump returns all chains and rules of an identity in the namespace of the calling thread.
func Dump(ctx context.Context, o Options) (string, error) {
	o, err := o.complete()
	if err != nil {
		return "", err
	}
	n := newNames(o.Identity.Name)
	owns := func(chain string) bool { return n.Owns(xtables.NAT, chain) || n.Owns(xtables.Filter, chain) }
	return stagetest.DumpChains(ctx, string(o.Flavour), owns, n.IsOpen)
}

// NewFaulty returns a backend that passes each commit to around, which may call it or fail.
func NewFaulty(o Options, around func(commit func() error) error) (proxy.Backend, error) {
	return newBackend(o, around)
}
