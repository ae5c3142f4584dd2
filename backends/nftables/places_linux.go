package nftables

import (
	"context"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// What cannot be changed in place is built anew, in tables of another name
// beside those that serve, in as many transactions as a first load takes. At the
// end the new base chains come, in one transaction, and then the old tables go,
// in another: every packet meets rules that are complete, the old or the new
// ones, and in between both. For the kernel asks the chains of one hook one after
// the other until one has translated the connection.

// twinSuffix ends the name of the second table of an identity. The name of no
// identity has an underscore.
const twinSuffix = "_2"

// places says where objects are written to.
type places struct {
	// names are those of the tables, by family; an identity's own by default.
	names [2]string
	// serving are the tables to remove once those have taken their place.
	serving []nfnetlink.Table
	// beside says that there are such tables. Base chains are held back then.
	beside bool
	// begun says that something has been written there.
	begun bool
	held  []op
}

func (p *places) name(fam family) *string {
	if fam == ipv6 {
		return &p.names[1]
	}
	return &p.names[0]
}

func (k *kernel) table(fam family) nfnetlink.Table {
	t := nfnetlink.Table{Family: nfnetlink.Family(fam), Name: *k.places.name(fam)}
	if t.Name == "" {
		t.Name = k.book.options.Identity.Name
	}
	return t
}

// twin gives the other name that a table of an identity may have.
func (k *kernel) twin(name string) string {
	if own := k.book.options.Identity.Name; name != own {
		return own
	}
	return name + twinSuffix
}

// tables gives the names of the tables of ours in a family, oldest first.
func (k *kernel) tables(ctx context.Context, fam family) ([]string, error) {
	var all []nfnetlink.TableInfo
	if err := k.conn.Tables(ctx, nfnetlink.Family(fam), nfnetlink.Collect(&all)); err != nil {
		return nil, k.explain(err)
	}
	own := k.book.options.Identity.Name
	var names []string
	for i := range all {
		if n := all[i].Name; n == own || n == own+twinSuffix {
			names = append(names, n)
		}
	}
	return names, nil
}

// serving finds the table of a family that packets go through, and a stray one: a
// replacement that was not finished, or a replaced table that was not removed. Names are
// empty where there are no such tables.
func (k *kernel) serving(ctx context.Context, fam family) (serves, stray string, err error) {
	names, err := k.tables(ctx, fam)
	if err != nil || len(names) == 0 {
		return "", "", err
	}
	if len(names) == 1 {
		return names[0], "", nil
	}
	// The newer one serves only after it is complete.
	for _, name := range slices.Backward(names) {
		var chains []nfnetlink.ChainInfo
		t := nfnetlink.Table{Family: nfnetlink.Family(fam), Name: name}
		if err := k.conn.Chains(ctx, t, nfnetlink.Collect(&chains)); err != nil {
			return "", "", k.explain(err)
		}
		if slices.ContainsFunc(chains, k.isOwnBase) {
			return name, k.twin(name), nil
		}
	}
	return names[0], names[1], nil
}

// isOwnBase reports whether a chain is one of our base chains, by which a table serves. A
// table that others made under our second name may have other base chains.
func (k *kernel) isOwnBase(c nfnetlink.ChainInfo) bool {
	return c.Base.Type != "" && c.Base == k.book.options.baseChain(c.Name)
}

// Replace implements [backends.Replacer].
func (k *kernel) Replace(ctx context.Context, want proxy.Snapshot, must bool) (yes bool, pieces int) {
	k.wanted = census(want)
	total := 0
	for _, table := range k.wanted {
		for _, n := range table {
			total += n
		}
	}
	// A process that has listed or made the tables before lists them again, however
	// large they are: that happens seldom, and keeps the clients of session affinity.
	k.places = places{}
	if !must && (total <= k.limits.list || k.looked) {
		return false, 0
	}
	if err := k.monitor.Begin(); err != nil {
		return false, 0 // List fails in the same way, and returns the error
	}
	next := places{beside: true}
	for _, fam := range []family{ipv4, ipv6} {
		name, _, err := k.serving(ctx, fam)
		if err != nil {
			return false, 0 // List fails in the same way, and returns the error
		}
		if name != "" {
			next.serving = append(next.serving, nfnetlink.Table{Family: nfnetlink.Family(fam), Name: name})
			*next.name(fam) = k.twin(name)
		}
	}
	if len(next.serving) == 0 {
		return false, 0
	}
	k.places = next
	k.forgetSlots()
	return true, 0
}

// hold keeps base chains back from operations on tables that are not to serve
// yet. Operations that take others back remove them again.
func (p *places) hold(ops []op) []op {
	if !p.beside || !slices.ContainsFunc(ops, isBaseChain) {
		return ops
	}
	rest := make([]op, 0, len(ops))
	for _, o := range ops {
		if !isBaseChain(o) {
			rest = append(rest, o)
			continue
		}
		// One that could not be committed the first time comes again.
		p.held = slices.DeleteFunc(p.held, func(h op) bool { return h.Key == o.Key })
		if o.Kind == backends.Add {
			p.held = append(p.held, o)
		}
	}
	return rest
}

func isBaseChain(o op) bool { return o.Key.kind == kindChain && o.Key.level == levelBase }

// Replaced implements [backends.Replacer].
func (k *kernel) Replaced(ctx context.Context) error {
	base, old := k.places.held, k.places.serving
	k.places.beside, k.places.held, k.places.serving = false, nil, nil
	if err := k.commit(ctx, base); err != nil {
		return err
	}
	if err := k.removeTables(ctx, old); err != nil {
		return err
	}
	k.looked = true
	return nil
}

func (k *kernel) removeTables(ctx context.Context, tables []nfnetlink.Table) error {
	if len(tables) == 0 {
		return nil
	}
	k.batch.Reset()
	for _, t := range tables {
		k.batch.DestroyTable(t)
	}
	if err := k.transact(ctx, &k.batch); err != nil {
		return k.explain(err)
	}
	k.ops.Add(uint64(len(tables)))
	return nil
}

// Cleanup implements [backends.Cleaner].
func (k *kernel) Cleanup(ctx context.Context) error {
	var all []nfnetlink.Table
	for _, fam := range []family{ipv4, ipv6} {
		names, err := k.tables(ctx, fam)
		if err != nil {
			return err
		}
		for _, n := range names {
			all = append(all, nfnetlink.Table{Family: nfnetlink.Family(fam), Name: n})
		}
	}
	k.forgetSlots()
	k.places = places{}
	return k.removeTables(ctx, all)
}
