package nftables

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// If a table cannot be changed in place, the backend writes new tables under other names,
// in as many transactions as for a first load, while the old ones serve. Then one
// transaction adds the new base chains, and another one removes the old tables. So every
// packet traverses complete rules, the old or the new ones, or between the two transactions
// both: the kernel evaluates the chains of one hook until one has translated the connection.

// secondSuffix ends the name of the second table of an identity.
const secondSuffix = kinds.SecondSuffix

// tables is the known state of the tables of both families: their names, the slot of each
// endpoint, the fill of the sets, and the endpoints of session affinity.
type tables struct {
	// names are by family; the name of the identity unless set.
	names    [2]string
	slots    map[slotPool][]slot
	fills    perSet[fill]
	affinity affinityState
}

// newTables returns the state of empty tables, with memory for the wanted frontends.
func (k *kernel) newTables() *tables {
	frontends := 0
	for _, table := range k.wanted {
		frontends += table[atServices] + table[atNodePorts]
	}
	return &tables{names: [2]string{k.options.Identity.Name, k.options.Identity.Name}, slots: make(map[slotPool][]slot, frontends)}
}

func (t *tables) table(fam nfnetlink.Family) nfnetlink.Table {
	return nfnetlink.Table{Family: fam, Name: t.names[familyAt(fam)]}
}

// other returns the other name that a table of an identity may have.
func (k *kernel) other(name string) string {
	if own := k.options.Identity.Name; name != own {
		return own
	}
	return name + secondSuffix
}

// existing returns the backend's tables in a family, oldest first.
func (k *kernel) existing(ctx context.Context, fam nfnetlink.Family) ([]nfnetlink.TableInfo, error) {
	return k.Tables(ctx, fam, k.options.Identity.Name, k.options.Identity.Name+secondSuffix)
}

// serving finds the table of a family that serves, and an idle one: a replacement that was
// not finished, or a replaced table that was not removed. Names are empty if there is no
// such table.
func (k *kernel) serving(ctx context.Context, fam nfnetlink.Family) (serves, idle nfnetlink.TableInfo, err error) {
	all, err := k.existing(ctx, fam)
	if err != nil || len(all) == 0 {
		return serves, idle, err
	}
	if len(all) == 1 {
		return all[0], idle, nil
	}
	// The newer table has base chains, and serves, only after it is complete.
	has, err := k.hasOwnBase(ctx, nfnetlink.Table{Family: fam, Name: all[1].Name})
	if has {
		return all[1], all[0], err
	}
	return all[0], all[1], err
}

// hasOwnBase reports whether a table has a base chain of this backend: a table with one serves. A foreign table
// under the backend's second name may have other base chains. It does not list the chains: while other programs commit all the time, a list of many is never complete.
func (k *kernel) hasOwnBase(ctx context.Context, t nfnetlink.Table) (bool, error) {
	for _, want := range k.options.baseChains() {
		c, err := k.Netlink.Chain(ctx, t, want.Name)
		if err == nil && c == want {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, nft.Explain(err)
		}
	}
	return false, nil
}

// Replace is Replace of [backends.TargetAbilities].
func (k *kernel) Replace(ctx context.Context, want proxy.Snapshot, must bool) backends.Replacement[key, value] {
	k.wanted = countElements(want)
	// A process that has listed or made the tables before lists them again, however
	// large they are: that happens rarely, and keeps the clients of session affinity.
	if !must && (total(&k.wanted) <= k.limits.list || k.verified) {
		return nil
	}
	if err := k.Begin(); err != nil {
		return nil // List fails in the same way, and returns the error
	}
	r := &replacement{kernel: k}
	k.found.Take() // of an earlier listing
	k.tables = k.newTables()
	k.tables.affinity.beside = true
	for _, fam := range nft.Families() {
		serves, _, err := k.serving(ctx, fam)
		if err != nil {
			return nil // List fails in the same way, and returns the error
		}
		if serves.Name == "" {
			continue
		}
		k.tables.names[familyAt(fam)] = serves.Name
		if err := k.find(ctx, fam); err != nil && !must {
			return nil // List fails in the same way, and returns the error
		}
		r.old = append(r.old, k.tables.table(fam))
		k.tables.names[familyAt(fam)] = k.other(serves.Name)
	}
	if len(r.old) == 0 {
		return nil
	}
	return r
}

// find reads the frontends of the table of a family that is replaced without a complete listing. Elements of other
// forms, which only other programs make, are no frontends.
func (k *kernel) find(ctx context.Context, fam nfnetlink.Family) error {
	l := lister{kernel: k, ctx: ctx, fam: fam}
	err := errors.Join(l.fixedSet(atServices), l.fixedSet(atNodePorts))
	for i := range l.objects {
		k.addFound(&l.objects[i].Key)
	}
	if errors.Is(err, backends.ErrReplace) {
		return nil
	}
	return err
}

// replacement makes new tables while the old ones serve. It adds their base chains last.
type replacement struct {
	kernel *kernel
	// old are the tables that serve until the end.
	old []nfnetlink.Table
	// started is true after the tables of an earlier attempt, if any, have been removed.
	started bool
	// bases are the withheld operations that add base chains.
	bases []op
}

// Pieces implements [backends.Replacement].
func (*replacement) Pieces() int { return 0 }

// Commit implements [backends.Replacement].
func (r *replacement) Commit(ctx context.Context, ops []op) backends.Outcome {
	if !r.started {
		var idle []nfnetlink.Table
		for _, fam := range nft.Families() {
			idle = append(idle, r.kernel.tables.table(fam))
		}
		if err := r.kernel.removeTables(ctx, idle); err != nil {
			return nft.Replacing(backends.PartialOutcome(0, len(ops), err))
		}
		r.started = true
	}
	rest, indexes := r.withoutBases(ops)
	return nft.Replacing(r.kernel.Commit(ctx, rest)).At(indexes)
}

// withoutBases withholds base chains until Finish.
func (r *replacement) withoutBases(ops []op) (rest []op, indexes []int) {
	if !slices.ContainsFunc(ops, isBaseChain) {
		return ops, nil
	}
	ordered, bases, indexes := backends.Partition(ops, func(o *op) bool { return isBaseChain(*o) })
	for _, o := range ordered[:bases] {
		// The operation is repeated after a commit that failed.
		r.bases = slices.DeleteFunc(r.bases, func(b op) bool { return b.Key == o.Key })
		if o.Kind == backends.Add {
			r.bases = append(r.bases, o)
		}
	}
	return ordered[bases:], indexes[bases:]
}

func isBaseChain(o op) bool { return o.Key.kind == kindBaseChain }

// Finish implements [backends.Replacement]. Between its two transactions, the old tables may
// translate a connection, and the new ones give its client affinity to that endpoint.
func (r *replacement) Finish(ctx context.Context) error {
	k := r.kernel
	if err := k.Commit(ctx, r.bases).Err(); err != nil {
		return err
	}
	if err := k.removeTables(ctx, r.old); err != nil {
		return err
	}
	k.tables.affinity.beside = false
	if err := k.purge(ctx); err != nil {
		return err
	}
	k.verified = true
	return nil
}

func (k *kernel) removeTables(ctx context.Context, tables []nfnetlink.Table) error {
	if err := k.RemoveTables(ctx, tables...); err != nil {
		return err
	}
	k.ops.Add(uint64(len(tables)))
	return nil
}

// Cleanup is Cleanup of [backends.TargetAbilities].
func (k *kernel) Cleanup(ctx context.Context) error {
	var all []nfnetlink.Table
	for _, fam := range nft.Families() {
		tables, err := k.existing(ctx, fam)
		if err != nil {
			return err
		}
		for _, t := range tables {
			all = append(all, nfnetlink.Table{Family: fam, Name: t.Name})
		}
	}
	k.tables = k.newTables()
	return k.removeTables(ctx, all)
}
