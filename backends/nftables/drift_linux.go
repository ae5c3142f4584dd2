package nftables

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// drift tells whether somebody else has changed the tables. Every commit,
// whoever makes it, moves the generation of the ruleset by one. Where others
// commit all the time, to tables of their own, looking at everything each time
// would keep a core busy in a large cluster. So a generation that moved has the
// outline compared first: tables, chains, rules, sets, and how full these are.
// Only now and then, and when that differs, are the elements looked at.
type drift struct {
	// generation is that of the ruleset when it was looked at last; commits is
	// how many of ours came after. Generation 0 is not known.
	generation, commits uint32
	// outline stands for what there was then but for elements; 0 is not known.
	outline uint64
	// others says that others have committed something since the elements were
	// looked at, which is thus still to be done even if they do nothing more.
	others bool
	// looked is when the elements were looked at last, and took how long that
	// took. It is zero in a process that has not seen or made the tables yet.
	looked time.Time
	took   time.Duration
}

// How often elements are looked at where others commit all the time: at most
// once a minute, and so that it takes no more than a fiftieth of the time.
const (
	lookEvery = time.Minute
	lookShare = 50
)

// outlineLimit is how many names of chains and sets an outline may have: with
// session affinity each service port has its own, and comparing them is no
// cheaper than looking at the elements.
const outlineLimit = 4096

// remember takes note of the generation of the ruleset before it is looked at.
// If that cannot be had, the next resync looks again.
func (k *kernel) remember(ctx context.Context) {
	generation, err := k.conn.Generation(ctx)
	if err != nil {
		generation = 0
	}
	k.drift.generation, k.drift.commits = generation, 0
}

// committed takes note of a commit of our own.
func (d *drift) committed(ops []op) {
	d.commits++
	for i := range ops {
		if ops[i].Key.setOf() == atNone && ops[i].Key.kind != kindSticky {
			d.outline = 0
			return
		}
	}
}

// seen takes note that everything was looked at, or made, since a time.
func (k *kernel) seen(ctx context.Context, since time.Time) {
	k.drift.looked, k.drift.others = time.Now(), false
	k.drift.took = k.drift.looked.Sub(since)
	outline, err := k.readOutline(ctx)
	if err != nil {
		outline = 0
	}
	k.drift.outline = outline
}

// Drifted implements [proxy.DriftChecker].
func (k *kernel) Drifted(ctx context.Context) bool {
	d := &k.drift
	generation, err := k.conn.Generation(ctx)
	if err != nil || d.generation == 0 {
		return true
	}
	moved := generation != d.generation+d.commits
	d.others = d.others || moved
	if d.others && time.Since(d.looked) > max(lookEvery, lookShare*d.took) {
		return true
	}
	if !moved && d.outline != 0 {
		return false
	}
	outline, err := k.readOutline(ctx)
	if err != nil || moved && d.outline != 0 && outline != d.outline {
		return true
	}
	// Without an outline to compare with, this one has to be believed, until
	// everything is looked at again.
	d.outline, d.generation, d.commits = outline, generation, 0
	return false
}

// readOutline gives a number for all that there is but for elements, and for how
// many there are of these, against what there should be.
func (k *kernel) readOutline(ctx context.Context) (uint64, error) {
	if len(k.book.names.v4.byText)+len(k.book.names.v6.byText) > outlineLimit {
		return 0, nil
	}
	h := fnv.New64a()
	for _, fam := range []family{ipv4, ipv6} {
		names, err := k.tables(ctx, fam)
		if err != nil {
			return 0, err
		}
		_, _ = fmt.Fprintln(h, fam, names) // a hash does not fail
		for _, name := range names {
			if err := k.outlineOf(ctx, fam, name, func(a ...any) { _, _ = fmt.Fprintln(h, a...) }); err != nil {
				return 0, err
			}
		}
	}
	return max(h.Sum64(), 1), nil
}

func (k *kernel) outlineOf(ctx context.Context, fam family, name string, note func(...any)) error {
	t := nfnetlink.Table{Family: nfnetlink.Family(fam), Name: name}
	var chains []nfnetlink.ChainInfo
	var rules []nfnetlink.RuleInfo
	var sets []nfnetlink.SetInfo
	for _, read := range []func() error{
		func() error { return k.conn.Chains(ctx, t, nfnetlink.Collect(&chains)) },
		func() error { return k.conn.Rules(ctx, t, nfnetlink.Collect(&rules)) },
		func() error { return k.conn.Sets(ctx, t, nfnetlink.Collect(&sets)) },
	} {
		if err := read(); err != nil {
			return err
		}
	}
	for i := range chains {
		note(chains[i].Name, chains[i].Base)
	}
	for i := range rules {
		note(rules[i].Chain, rules[i].Handle, rules[i].Userdata)
	}
	for i := range sets {
		s := &sets[i]
		surplus := 0
		if f := k.fills.byName(fam, s.Name); f != nil && s.Count >= 0 {
			surplus = s.Count - f.count
		}
		note(s.Name, s.SetSpec, surplus)
	}
	return nil
}
