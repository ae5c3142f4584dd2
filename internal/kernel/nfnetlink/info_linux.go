package nfnetlink

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// TableInfo is a table as the kernel lists it.
type TableInfo struct {
	Name string
	// Flags are flags of the kernel, such as NFT_TABLE_F_DORMANT.
	Flags uint32
}

// IsDormant reports whether the kernel ignores the rules of a table.
func (i TableInfo) IsDormant() bool { return i.Flags&unix.NFT_TABLE_F_DORMANT != 0 }

// RuleInfo is a rule as the kernel lists it.
type RuleInfo struct {
	Chain    string
	Handle   uint64
	Userdata string
	// steps is part of the read buffer, which the next read overwrites.
	steps attrs
}

// Tag returns the tag that [AppendTag] appended to the user data of the rule, "" if there
// is none.
func (i *RuleInfo) Tag() string { return udataField(i.Userdata, udataTag) }

// SetInfo is a set as the kernel lists it.
type SetInfo struct {
	SetSpec
	// Count is the number of elements, -1 if the kernel does not report it (Linux
	// before 6.16). In a set of intervals it may include the ends.
	Count int
}

// Tables visits all tables of a family, also tables of other programs.
func (c *Conn) Tables(ctx context.Context, fam Family, v Visitor[TableInfo]) error {
	q := query{op: "list tables", typ: unix.NFT_MSG_GETTABLE, table: Table{Family: fam}}
	return visitObjects(ctx, c, q, parseTable, v)
}

// Chains visits the chains of a table, none if there is no such table.
func (c *Conn) Chains(ctx context.Context, t Table, v Visitor[Chain]) error {
	q := query{op: "list chains of", typ: unix.NFT_MSG_GETCHAIN, table: t}
	return visitObjects(ctx, c, q, parseChain, v)
}

// Rules visits the rules of a table, the rules of one chain in their order; none
// if there is no such table.
func (c *Conn) Rules(ctx context.Context, t Table, v Visitor[RuleInfo]) error {
	q := query{op: "list rules of", typ: unix.NFT_MSG_GETRULE, table: t}
	return visitObjects(ctx, c, q, parseRule, v)
}

// HaveAll reports whether the chains of all rules are in a list of chains. The list of an
// interrupted dump may lack some.
func HaveAll(chains []Chain, rules []RuleInfo) bool {
	listed := make(map[string]bool, len(chains))
	for i := range chains {
		listed[chains[i].Name] = true
	}
	return !slices.ContainsFunc(rules, func(r RuleInfo) bool { return !listed[r.Chain] })
}

// Sets visits the sets and maps of a table, including anonymous ones. It is an error if
// there is no such table (ENOENT).
func (c *Conn) Sets(ctx context.Context, t Table, v Visitor[SetInfo]) error {
	q := query{op: "list sets of", typ: unix.NFT_MSG_GETSET, table: t}
	return visitObjects(ctx, c, q, parseSet, v)
}

// visitObjects visits objects of a kind that has one object in each message.
func visitObjects[T any](ctx context.Context, c *Conn, q query, parse func(attrs) T, v Visitor[T]) error {
	return visit(ctx, c, q, v, func(a attrs) error {
		// The request names one table, but some kernels and some dumps ignore that.
		if q.table.Name != "" && a.Text(unix.NFTA_TABLE_NAME) != q.table.Name {
			return nil
		}
		if err := a.Check(); err != nil {
			return err
		}
		item := parse(a)
		return v.Each(&item)
	})
}

func parseTable(a attrs) TableInfo {
	return TableInfo{Name: a.Text(unix.NFTA_TABLE_NAME), Flags: a.Uint32(unix.NFTA_TABLE_FLAGS)}
}

const policyDrop = 0 // NF_DROP

func parseChain(a attrs) Chain {
	hook, policy := attrs(a.Find(unix.NFTA_CHAIN_HOOK)), a.Find(unix.NFTA_CHAIN_POLICY)
	return Chain{Name: a.Text(unix.NFTA_CHAIN_NAME), Base: BaseChain{
		Type:     a.Text(unix.NFTA_CHAIN_TYPE),
		Hook:     Hook(hook.Uint32(unix.NFTA_HOOK_HOOKNUM)),
		Priority: int32(hook.Uint32(unix.NFTA_HOOK_PRIORITY)),
		Drop:     policy != nil && rawnetlink.Uint32Of(policy) == policyDrop,
	}}
}

func parseRule(a attrs) RuleInfo {
	return RuleInfo{
		Chain:    a.Text(unix.NFTA_RULE_CHAIN),
		Handle:   a.Uint64(unix.NFTA_RULE_HANDLE),
		Userdata: string(a.Find(unix.NFTA_RULE_USERDATA)),
		steps:    a.Find(unix.NFTA_RULE_EXPRESSIONS),
	}
}

func parseSet(a attrs) SetInfo {
	i := SetInfo{Count: -1, SetSpec: SetSpec{
		Name:     a.Text(unix.NFTA_SET_NAME),
		Flags:    SetFlags(a.Uint32(unix.NFTA_SET_FLAGS)),
		KeyType:  a.Uint32(unix.NFTA_SET_KEY_TYPE),
		KeyLen:   a.Uint32(unix.NFTA_SET_KEY_LEN),
		DataType: a.Uint32(unix.NFTA_SET_DATA_TYPE),
		DataLen:  a.Uint32(unix.NFTA_SET_DATA_LEN),
		Size:     attrs(a.Find(unix.NFTA_SET_DESC)).Uint32(unix.NFTA_SET_DESC_SIZE),
		Timeout:  a.Uint64(unix.NFTA_SET_TIMEOUT),
		Userdata: string(a.Find(unix.NFTA_SET_USERDATA)),
		Stateful: a.Find(attrSetExpr) != nil || a.Find(attrSetExprs) != nil,
	}}
	if count := a.Find(attrSetCount); count != nil {
		i.Count = int(rawnetlink.Uint32Of(count))
	}
	return i
}
