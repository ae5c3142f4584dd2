package nft

import (
	"errors"
	"fmt"
	"hash/fnv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Explain adds exactly the errors that callers act on: to resync, to give up, or to find
// the faulty port.
func TestExplain(t *testing.T) {
	t.Parallel()
	refused := func(op string, errno unix.Errno) error {
		return fmt.Errorf("committing: %w", &nfnetlink.Error{Errno: errno, Op: op, Object: "pick-4"})
	}
	ofOthers := &nfnetlink.Error{Errno: unix.EPERM, Op: "add element", Table: nfnetlink.Table{Family: nfnetlink.IPv4, Name: "vipkit"}}
	listing := &nfnetlink.Error{Errno: unix.EPERM, Op: "list chains of", Table: ofOthers.Table}
	all := []error{
		proxy.ErrDataplaneLost, proxy.ErrUnsupported,
		backends.ErrConflict, backends.ErrReplace, backends.ErrUnavailable,
	}
	for _, c := range []struct {
		err, want error
	}{
		{nfnetlink.ErrUnknownOutcome, proxy.ErrDataplaneLost},
		{fmt.Errorf("%w: %w", nfnetlink.ErrUnknownOutcome, unix.ENOBUFS), proxy.ErrDataplaneLost},
		{unix.EPERM, errors.Join(proxy.ErrUnsupported, backends.ErrUnavailable)},
		{refused("add element", unix.EPERM), errors.Join(proxy.ErrUnsupported, backends.ErrUnavailable)},
		{ofOthers, backends.ErrUnavailable},
		{listing, errors.Join(proxy.ErrUnsupported, backends.ErrUnavailable)}, // of a table of another owner, anybody may
		{refused("add element", unix.ENFILE), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{refused("add rule", unix.EEXIST), backends.ErrConflict},
		{&nfnetlink.SizeError{Size: 2, Max: 1}, nil},
		{refused("add rule", unix.ENOENT), proxy.ErrUnsupported},
		{refused("add rule", unix.EOPNOTSUPP), proxy.ErrUnsupported},
		{refused("add set", unix.EOPNOTSUPP), proxy.ErrUnsupported},
		{refused("add table", unix.EAFNOSUPPORT), proxy.ErrUnsupported},
		{refused("add chain", unix.EPROTONOSUPPORT), proxy.ErrUnsupported},
		{refused("add chain", unix.EOPNOTSUPP), backends.ErrConflict},
		{refused("add chain", unix.ENOENT), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{&nfnetlink.Error{Errno: unix.ENOENT, Op: "add chain", Attr: unix.NFTA_CHAIN_TABLE}, errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{&nfnetlink.Error{Errno: unix.ENOENT, Op: "add chain", Attr: unix.NFTA_CHAIN_TYPE}, proxy.ErrUnsupported},
		{refused("delete element", unix.ENOENT), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{refused("add element", unix.ENOMEM), nil},
		{refused("add element", unix.EEXIST), backends.ErrConflict},
		{refused("delete chain", unix.EBUSY), backends.ErrConflict},
		{refused("add element", unix.EINVAL), nil},
		{unix.ENOBUFS, nil},
		{errors.New("something else"), nil},
	} {
		got := Explain(c.err)
		if !errors.Is(got, c.err) {
			t.Errorf("Explain(%v): got %v, want it to wrap the error", c.err, got)
		}
		for _, e := range all {
			if errors.Is(got, e) != errors.Is(c.want, e) {
				t.Errorf("Explain(%v): got %v, want it to wrap %v and no other error of backends", c.err, got, c.want)
			}
		}
	}
	if err := Explain(nil); err != nil {
		t.Errorf("Explain(nil): got %v, want nil", err)
	}
}

// A listing that commits of others interrupted each time is no reason to give up: everything is
// made anew. Any other error of a listing means what it means elsewhere.
func TestListed(t *testing.T) {
	t.Parallel()
	err := Listed(fmt.Errorf("%w: list chains", nfnetlink.ErrInterrupted), "the chains")
	if !errors.Is(err, backends.ErrReplace) {
		t.Errorf("interrupted each time: got error %v, want %v", err, backends.ErrReplace)
	}
	if err := Listed(unix.ENOMEM, "the chains"); !errors.Is(err, unix.ENOMEM) || errors.Is(err, backends.ErrReplace) {
		t.Errorf("no memory: got error %v, want %v only", err, unix.ENOMEM)
	}
	if err := Listed(nil, "the chains"); err != nil {
		t.Errorf("no error: got %v", err)
	}
}

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
