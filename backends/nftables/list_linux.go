package nftables

import (
	"context"
	"errors"
	"iter"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// List implements [backends.Target]. It yields an object that was changed with a value that
// no service port renders, so that it is replaced or removed. If others have added objects
// to our tables, the tables are replaced: such objects may refer to each other and to ours,
// so that none can be removed by itself.
func (k *kernel) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		k.forgetSlots()
		k.places = places{}
		if err := k.monitor.Begin(); err != nil {
			yield(object{}, k.explain(err))
			return
		}
		for _, fam := range []family{ipv4, ipv6} {
			l := lister{kernel: k, ctx: ctx, fam: fam, yield: yield}
			err := l.list()
			if err != nil && !errors.Is(err, errStopped) {
				yield(object{}, err)
			}
			if err != nil {
				return
			}
		}
		k.looked = true
	}
}

type lister struct {
	*kernel
	ctx   context.Context
	fam   family
	yield func(object, error) bool
	// objects are those of the part that is being listed: it may have to be
	// listed again from its beginning.
	objects []object
	indexes []uint32
}

var errStopped = errors.New("the listing was stopped")

// flush hands the objects of a finished part over.
func (l *lister) flush() error {
	for _, o := range l.objects {
		if !l.yield(o, nil) {
			return errStopped
		}
	}
	l.objects = l.objects[:0]
	return nil
}

func (l *lister) add(k key, v value) {
	k.fam = l.fam
	l.objects = append(l.objects, object{Key: k, Value: v})
}

func (l *lister) list() error {
	name, stray, err := l.serving(l.ctx, l.fam)
	if err != nil || name == "" {
		return err
	}
	*l.places.name(l.fam) = name
	if err := l.checkDormant(name); err != nil {
		return err
	}
	l.add(key{kind: kindTable}, 0)
	if stray != "" {
		l.add(key{kind: kindTable, name: l.book.names.of(l.fam).number(stray)}, 0)
	}
	if err := l.chains(); err != nil {
		return l.explain(err)
	}
	if err := l.flush(); err != nil {
		return err
	}
	var sets []nfnetlink.SetInfo
	ofSets := nfnetlink.Collect(&sets)
	ofSets.Consistent = l.unchanged
	if err := l.conn.Sets(l.ctx, l.table(l.fam), ofSets); err != nil {
		return l.explain(readable(err, "the sets"))
	}
	for i := range sets {
		if sets[i].Flags&unix.NFT_SET_ANONYMOUS != 0 {
			continue // it is part of a foreign rule, and goes with it
		}
		if err := l.set(&sets[i]); err != nil {
			return l.explain(err)
		}
		if err := l.flush(); err != nil {
			return err
		}
	}
	return nil
}

// checkDormant asks for new tables if one is dormant: the kernel ignores its rules.
func (l *lister) checkDormant(table string) error {
	var all []nfnetlink.TableInfo
	if err := l.conn.Tables(l.ctx, nfnetlink.Family(l.fam), nfnetlink.Collect(&all)); err != nil {
		return l.explain(err)
	}
	for i := range all {
		if all[i].Name == table && all[i].Flags&unix.NFT_TABLE_F_DORMANT != 0 {
			return mustReplace("the dormant table " + table)
		}
	}
	return nil
}

// chains lists chains with the hash that all their rules carry, and none where
// a rule is missing, foreign or out of place, or the chain is.
func (l *lister) chains() error {
	var rules []nfnetlink.RuleInfo
	ofRules := nfnetlink.Collect(&rules)
	ofRules.Consistent = l.unchanged
	if err := l.conn.Rules(l.ctx, l.table(l.fam), ofRules); err != nil {
		return readable(err, "the rules")
	}
	byChain := map[string][]string{}
	for i := range rules {
		byChain[rules[i].Chain] = append(byChain[rules[i].Chain], rules[i].Tag())
	}
	var chains []nfnetlink.ChainInfo
	ofChains := nfnetlink.Collect(&chains)
	ofChains.Consistent = func() bool { return l.unchanged() && nfnetlink.HaveAll(chains, rules) }
	if err := l.conn.Chains(l.ctx, l.table(l.fam), ofChains); err != nil {
		return readable(err, "the chains")
	}
	for i := range chains {
		c := &chains[i]
		if levelOf(c) > levelBase {
			return mustReplace("chain " + c.Name + ", which this backend did not make,")
		}
		hash, renamed := hashOf(byChain[c.Name], chainTag(c.Name))
		if renamed {
			// Rules go on to lead to a chain that has got another name.
			return mustReplace("chain " + c.Name + ", which had another name,")
		}
		if c.Base != l.book.options.baseChain(c.Name) {
			hash = 0
		}
		l.add(key{kind: kindChain, name: l.book.names.of(l.fam).number(c.Name), level: levelOf(c)}, hash)
	}
	return nil
}

// unchanged reports whether nobody has changed our tables since the listing began.
func (l *lister) unchanged() bool { return !l.monitor.Noticed() }

// readable turns the interruption of a listing by commits of others into a reason to replace
// the tables.
func readable(err error, what string) error {
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		return mustReplace(what + ", whose listing was interrupted by commits of others each time,")
	}
	return err
}

// hashOf gives the hash that all rules of a chain carry, by their tags, or none; and
// whether one of them was written for a chain of another name.
func hashOf(tags []string, chain uint32) (hash value, renamed bool) {
	whole := true
	for at, text := range tags {
		t, ok := parseTag(text)
		renamed = renamed || ok && t.chain != chain
		whole = whole && ok && int(t.i) == at && int(t.n) == len(tags) && (at == 0 || t.hash == hash)
		hash = t.hash
	}
	if !whole {
		hash = 0
	}
	return hash, renamed
}

// levelOf gives the level of a chain by its name, or one above all others for a
// chain that is none of ours.
func levelOf(c *nfnetlink.ChainInfo) uint8 {
	switch c.Name {
	case rejectChain:
		return levelReject
	case chainServices, chainRemember:
		return levelDispatch
	case chainPrerouting, chainOutput, chainInput, chainPostrouting:
		return levelBase
	}
	for _, p := range [...]struct {
		prefix string
		level  uint8
	}{
		{"pick-", levelPick}, {"stick-", levelStick}, {"masquerade-nonpods-", levelSource}, {"masquerade-", levelMasquerade},
		{"inside-", levelSource}, {"pod-", levelSource}, {"restrict-", levelSource}, {"remember-affinity-", levelPick}, {"remember-", levelStick},
	} {
		if strings.HasPrefix(c.Name, p.prefix) {
			return p.level
		}
	}
	return levelBase + 1
}
