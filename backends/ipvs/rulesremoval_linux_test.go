package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"testing"
	"unique"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The removal of the constant rules is the last operation of a Commit. The rules are not known as written after it, so
// that the next Apply writes them again. They stay while something does that needs them.
func TestRulesAreRemovedAndWrittenAgain(t *testing.T) {
	x := rulesTarget(t)
	rules := op{Key: key{kind: kindRules}, Value: value{rules: unique.Make("rules")}, Payload: stagetest.Node()}
	removal := op{Kind: backends.Remove, Key: rules.Key, Value: rules.Value}
	for range 2 {
		testenv.NoError(t, x.Commit(t.Context(), []op{rules}).Err())
		if x.rules.written != rules.Value.rules {
			t.Fatalf("rules after Add: got %v, want %v", x.rules.written, rules.Value.rules)
		}
		testenv.NoError(t, x.Commit(t.Context(), []op{removal}).Err())
		if x.rules.written != (unique.Handle[string]{}) {
			t.Fatalf("rules after Remove: got %v, want none", x.rules.written)
		}
	}
	testenv.NoError(t, x.Commit(t.Context(), []op{rules}).Err())
	stays := op{Kind: backends.Remove, Key: key{kind: kindAddress, addr: netip.MustParseAddrPort("10.96.0.1:0")}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	out := x.Commit(ended, []op{stays, removal})
	if out.Lost != nil || len(out.Failed) != 2 || x.rules.written != rules.Value.rules {
		t.Errorf("address that stays: got outcome %v and rules %v, want two failures and %v", out, x.rules.written, rules.Value.rules)
	}
}

// rulesTarget returns a target with nothing but constant rules, and no device.
func rulesTarget(t *testing.T) *target {
	x := &target{renderer: &renderer{}}
	testenv.NoError(t, netnstest.NewNS(t).Do(func() error {
		err := stagetest.MakeHooks(t.Context(), "nft", "*filter\n:INPUT ACCEPT\nCOMMIT\n")
		if errors.Is(err, exec.ErrNotFound) {
			testenv.CannotRun(t, err.Error())
		}
		if err != nil {
			return err
		}
		n := xtables.Names{Prefix: "TEST-", Chains: map[xtables.Table][]string{xtables.Filter: {"ALL"}}}
		x.rules.Backend, err = xtables.New(xtables.Config{
			Options: xtables.Options{Flavour: xtables.NFT, LockWait: xtables.DefaultLockWait}, Names: n,
			Families: []xtables.Family{{Family: v1.IPv4Protocol, Render: renderOneChain}},
		})
		if err == nil {
			x.device.at, err = netns.Current()
		}
		return err
	}))
	t.Cleanup(func() { testenv.NoError(t, x.Close()) })
	return x
}

func renderOneChain(env backends.Env, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
	if port != nil || env.Node == nil {
		return out
	}
	return append(out, xtables.Object{Key: xtables.Key{Table: xtables.Filter, Chain: "TEST-ALL"}, Value: "-j ACCEPT\n"})
}
