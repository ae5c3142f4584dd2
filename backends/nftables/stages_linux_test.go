package nftables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
)

func TestChainsAhead(t *testing.T) {
	t.Parallel()
	set := op{Kind: backends.Add, Key: key{kind: kindSet, name: handleOf("1")}}
	chain := op{Kind: backends.Add, Key: key{kind: kindPickChain, name: handleOf("2")}}
	old := op{Kind: backends.Replace, Key: key{kind: kindPickChain, name: handleOf("3")}}
	added := op{Kind: backends.Add, Key: key{kind: kindFrontend, port: 1}, Value: to(handleOf("2"))}
	changed := op{Kind: backends.Replace, Key: key{kind: kindFrontend, port: 2}, Value: to(handleOf("2"))}
	closed := op{Kind: backends.Replace, Key: key{kind: kindRestriction, port: 2}, Value: to(handleOf("2"))}
	removed := op{Kind: backends.Remove, Key: key{kind: kindPickChain, name: handleOf("4")}}
	for _, c := range []struct {
		name             string
		ops, first, rest []op
	}{
		{"nothing", nil, nil, nil},
		{"a new service", []op{set, chain, added}, nil, []op{set, chain, added}},
		{"a chain that exists", []op{old, changed, removed}, nil, []op{old, changed, removed}},
		{"new source ranges", []op{chain, closed}, []op{chain}, []op{closed}},
		{"a new chain for an old service", []op{set, old, chain, added, changed, removed}, []op{set, chain}, []op{old, added, changed, removed}},
	} {
		var first []op
		rest := c.ops
		if ahead, _ := stages(c.ops); ahead != nil {
			ordered, n, _ := backends.Partition(c.ops, ahead)
			first, rest = ordered[:n], ordered[n:]
		}
		opt := cmp.Comparer(func(a, b op) bool { return a == b })
		if diff := cmp.Diff(c.first, first, opt); diff != "" {
			t.Errorf("%s: operations of the first transaction (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.rest, rest, opt); diff != "" {
			t.Errorf("%s: operations of the second transaction (-want +got):\n%s", c.name, diff)
		}
	}
}
