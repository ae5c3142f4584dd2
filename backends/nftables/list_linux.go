package nftables

import (
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// List implements [backends.Target]. It yields a changed object with a value that no service
// port renders, so that it is replaced or removed. If other programs have added objects to
// the backend's tables, the tables are replaced: such objects may refer to each other and to
// the backend's, so they cannot be removed one by one.
func (k *kernel) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		k.tables = k.newTables()
		k.found.Take() // of an earlier listing
		if err := k.Begin(); err != nil {
			yield(object{}, err)
			return
		}
		for _, fam := range nft.Families() {
			l := lister{kernel: k, ctx: ctx, fam: fam, yield: yield, sticky: map[key]struct{}{}}
			err := l.list()
			if err != nil && !errors.Is(err, errStopped) {
				yield(object{}, err)
			}
			if err != nil {
				return
			}
		}
		k.tables.affinity.beside = len(k.tables.slots) > 0
		k.verified = true
	}
}

// lister lists the tables of one family for List.
type lister struct {
	*kernel
	ctx   context.Context
	fam   nfnetlink.Family
	yield func(object, error) bool
	// objects are the objects of the current part of the listing, which a commit of another
	// program may start again.
	objects []object
	indexes []uint32
	// recorders are the listed objects of kindRecord, and sticky the objects of kindSticky.
	recorders []object
	sticky    map[key]struct{}
}

var errStopped = errors.New("the listing was stopped")

// flush yields the objects of a complete part.
func (l *lister) flush() error {
	for _, o := range l.objects {
		if o.Key.kind == kindFrontend {
			l.addFound(&o.Key)
		}
		if o.Key.kind == kindSticky {
			l.tables.affinity.add(&o.Key)
		}
		if !l.yield(o, nil) {
			return errStopped
		}
	}
	l.objects = l.objects[:0]
	return nil
}

func (k *kernel) addFound(frontend *key) {
	at := frontend.frontend()
	k.found.Add(ipaddr.FamilyOf(at.Addr()), frontend.proto, at)
}

func (l *lister) add(k key, v value) {
	k.fam = l.fam
	l.objects = append(l.objects, object{Key: k, Value: v})
}

func (l *lister) list() error {
	serves, idle, err := l.serving(l.ctx, l.fam)
	if err != nil || serves.Name == "" {
		return err
	}
	l.tables.names[familyAt(l.fam)] = serves.Name
	if idle.Name != "" {
		// A replaced table that is still there serves, too. It must be gone before the listing,
		// or clients would get affinity to endpoints that only this table has.
		if err := l.removeTables(l.ctx, []nfnetlink.Table{{Family: l.fam, Name: idle.Name}}); err != nil {
			return err
		}
	}
	if serves.IsDormant() { // the kernel ignores its rules
		return nft.MustReplace("the dormant table " + serves.Name)
	}
	l.add(key{kind: kindTable}, value{})
	if err := l.chains(); err != nil {
		return err
	}
	if err := l.flush(); err != nil {
		return err
	}
	sets, err := l.Sets(l.ctx, l.tables.table(l.fam))
	if err != nil {
		return err
	}
	for i := range sets {
		if err := l.set(&sets[i]); err != nil {
			return err
		}
		if err := l.flush(); err != nil {
			return err
		}
	}
	l.choices(sets)
	for k := range l.sticky {
		l.add(k, value{})
	}
	return l.flush()
}

// chains lists chains with the hash that all their rules carry. The hash is 0 if a rule is
// missing, foreign or out of order, or if the base chain has another hook or priority.
func (l *lister) chains() error {
	chains, err := l.Chains(l.ctx, l.tables.table(l.fam))
	if err != nil {
		return err
	}
	for i := range chains {
		c := &chains[i]
		kind := chainKind(c.Name)
		if kind == kindTable {
			return nft.MustReplace("chain " + c.Name + ", which this backend did not make,")
		}
		if c.Renamed {
			// Rules still refer to a chain that was renamed.
			return nft.MustReplace("chain " + c.Name + ", which had another name,")
		}
		if c.Base != l.options.baseChain(c.Name) {
			c.Hash = 0
		}
		l.add(key{kind: kind, name: handleOf(c.Name)}, value{hash: c.Hash})
	}
	return nil
}

// chainKind returns the kind of a chain by its name; kindTable for a foreign chain.
func chainKind(name string) kind {
	switch name {
	case rejectChain:
		return kindRejectChain
	case chainServices, chainRemember, chainUnserved:
		return kindDispatchChain
	}
	if (&Options{}).baseChain(name) != (nfnetlink.BaseChain{}) {
		return kindBaseChain
	}
	for _, p := range [...]struct {
		prefix string
		kind   kind
	}{
		{"pick-", kindPickChain}, {"stick-", kindStickChain}, {"masquerade-nonpods-", kindSourceChain}, {"masquerade-", kindMasqueradeChain},
		{"inside-", kindSourceChain}, {"pod-", kindSourceChain}, {"restrict-", kindSourceChain}, {"remember-affinity-", kindPickChain}, {"remember-", kindStickChain},
	} {
		if strings.HasPrefix(name, p.prefix) {
			return p.kind
		}
	}
	return kindTable
}
