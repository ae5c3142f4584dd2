package nft

import (
	"hash/fnv"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// Tags identify the rules of a chain only if the chain has exactly these rules, in their
// order.
func TestTags(t *testing.T) {
	t.Parallel()
	own := nameTag("pick-4")
	of := func(chain string, hash uint64, i, n uint16) string {
		rule := nfnetlink.RuleInfo{Userdata: string(tag{hash: hash, chain: nameTag(chain), i: i, n: n}.append(nil))}
		return rule.Tag()
	}
	tag := func(hash uint64, i, n uint16) string { return of("pick-4", hash, i, n) }
	got, ok := parseTag(tag(0x0123456789abcdef, 7, 300))
	if got.hash != 0x0123456789abcdef || got.chain != own || got.i != 7 || got.n != 300 || !ok {
		t.Errorf("a tag, read back: got %+v, %t", got, ok)
	}
	for _, c := range []struct {
		name string
		tags []string
		want uint64
	}{
		{"no rules", nil, 0},
		{"one rule", []string{tag(5, 0, 1)}, 5},
		{"two rules", []string{tag(5, 0, 2), tag(5, 1, 2)}, 5},
		{"a rule is missing at the end", []string{tag(5, 0, 2)}, 0},
		{"a rule is missing at the start", []string{tag(5, 1, 2)}, 0},
		{"a rule is missing in between", []string{tag(5, 0, 3), tag(5, 2, 3)}, 0},
		{"rules in another order", []string{tag(5, 1, 2), tag(5, 0, 2)}, 0},
		{"a rule twice", []string{tag(5, 0, 2), tag(5, 0, 2)}, 0},
		{"rules of two definitions", []string{tag(5, 0, 2), tag(6, 1, 2)}, 0},
		{"a foreign rule", []string{tag(5, 0, 2), ""}, 0},
		{"a foreign rule with a comment", []string{"\x00\x02x\x00", tag(5, 1, 2)}, 0},
		{"a rule with more user data", []string{tag(5, 0, 1) + "x"}, 0},
	} {
		if got, renamed := hashOf(c.tags, own); got != c.want || renamed {
			t.Errorf("%s: got hash %d, renamed: %t, want hash %d, renamed: false", c.name, got, renamed, c.want)
		}
	}
	for _, tags := range [][]string{{of("pick-8", 5, 0, 1)}, {"", of("pick-8", 5, 1, 2)}, {tag(5, 0, 2), of("pick-8", 5, 1, 2)}, {of("pick-8", 5, 0, 2), tag(5, 1, 2)}} {
		if _, renamed := hashOf(tags, own); !renamed {
			t.Errorf("rules of another chain, %q: got renamed: false, want true", tags)
		}
	}
}

// nameTag must not change: it is in the rules that an earlier process wrote.
func TestNameTag(t *testing.T) {
	t.Parallel()
	h := fnv.New32a()
	if _, err := h.Write([]byte("pick-4")); err != nil {
		t.Fatal(err)
	}
	if got, want := nameTag("pick-4"), h.Sum32(); got != want {
		t.Errorf("nameTag: got %x, want %x", got, want)
	}
}
