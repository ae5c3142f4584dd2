package nftables

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// written returns the transactions of a commit as text.
func written(t *testing.T, r *renderer, ops []op) (all []string) {
	t.Helper()
	k := &kernel{renderer: r, limits: limits{set: leastSize}, Conn: &nft.Conn{
		Transact: func(_ context.Context, b *nfnetlink.Batch) error {
			all = append(all, fmt.Sprintf("%+v", *b))
			return b.Err()
		},
	}}
	k.tables = k.newTables()
	testenv.NoError(t, k.Commit(t.Context(), ops).Err())
	return all
}

// additions returns the operations that add objects, ordered by rank.
func additions(objects []object) (ops []op) {
	seen := map[key]bool{}
	for _, o := range objects {
		if !seen[o.Key] {
			seen[o.Key] = true
			ops = append(ops, op{Kind: backends.Add, Key: o.Key, Value: o.Value, Payload: o.Payload})
		}
	}
	slices.SortStableFunc(ops, func(a, b op) int { return a.Key.Rank() - b.Key.Rank() })
	return ops
}

func everyRendering() (all []stagetest.Rendering) {
	for _, node := range append(testNodes(), stagetest.Node()) {
		for _, port := range append(everyPort(), nil) {
			all = append(all, stagetest.Rendering{Node: node, Port: port})
		}
	}
	return all
}

// Rendering keeps no state: concurrent renderings, for several nodes and in any order, return
// the same objects as a single one, and commits of them write the same.
func TestRenderIsPure(t *testing.T) {
	t.Parallel()
	o, err := Options{}.complete()
	testenv.NoError(t, err)
	stagetest.RunPurity(t, testenv.Random(t), everyRendering(), func() (backends.Render[key, value], func([]object) string) {
		r := newRenderer(o)
		return r.render, func(objects []object) string { return fmt.Sprint(written(t, r, additions(objects))) }
	})
}

// A process compares the objects that it finds by key and value alone: objects with equal
// keys and values have equal payloads, for any options and nodes.
func TestKeyAndValueIdentifyPayloads(t *testing.T) {
	t.Parallel()
	type known struct {
		Key   key
		Value value
	}
	content := map[known]string{}
	for _, options := range []Options{
		{}, {Identity: identity("", 0x8000, 0)}, {Identity: identity("", 0, 5)},
	} {
		o, err := options.complete()
		testenv.NoError(t, err)
		r := newRenderer(o)
		for _, x := range everyRendering() {
			for _, o := range r.render(x.Node, x.Port, nil) {
				if !o.Key.kind.isChain() && o.Key.kind != kindSet {
					continue
				}
				if chain, is := o.Payload.(*nft.Chain); is {
					add := nft.ChainOp{Name: "x", Chain: chain}
					if n, err := add.Write(new(nfnetlink.Batch), nfnetlink.Table{Family: o.Key.fam, Name: "x"}); n < 2 || err != nil {
						t.Fatalf("%s: rules: got %d, error %v, want at least one, because a chain without rules has no tag", text(o.Key.name), n-1, err)
					}
				}
				got := fmt.Sprint(written(t, r, additions([]object{o})))
				at := known{o.Key, o.Value}
				if want, ok := content[at]; ok && got != want {
					t.Fatalf("%s: payload of a known key and value: got another one, want the same, with options %+v, node %+v, port %v",
						text(o.Key.name), options, x.Node, x.Port)
				}
				content[at] = got
			}
		}
	}
	if len(content) < 1000 {
		t.Errorf("compared sets and chains: got %d, want at least 1000", len(content))
	}
}
