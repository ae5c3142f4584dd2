package nfnetlink

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// TableInfo is a table as the kernel has it.
type TableInfo struct {
	Name string
	// Flags are those of the kernel: 1 dormant, 2 owned by a process, 4
	// outlives its owner.
	Flags uint32
	// Userdata is what programs keep about the table, such as its comment.
	Userdata string
}

// Comment returns the comment of the table.
func (i *TableInfo) Comment() string { return udataText(i.Userdata, udataComment) }

// ChainInfo is a chain as the kernel has it.
type ChainInfo struct {
	Name     string
	Base     BaseChain
	Userdata string
}

// Comment returns the comment of the chain.
func (i *ChainInfo) Comment() string { return udataText(i.Userdata, udataComment) }

// RuleInfo is a rule as the kernel has it.
type RuleInfo struct {
	Chain    string
	Handle   uint64
	Userdata string
	// steps is part of what was read, which is used again for the next messages.
	steps attrs
}

// Tag returns what [AppendTag] appended to the user data of the rule.
func (i *RuleInfo) Tag() string { return udataField(i.Userdata, udataTag) }

// SetInfo is a set as the kernel has it.
type SetInfo struct {
	SetSpec
	// Count is the number of elements, -1 when the kernel does not say
	// (Linux before 6.16). In a set of intervals it may count the ends.
	Count int
}

// Comment returns the comment of the set.
func (i *SetInfo) Comment() string { return udataText(i.Userdata, udataSetComment) }

// Tables visits all tables of a family, those of other programs included.
func (c *Conn) Tables(ctx context.Context, fam Family, v Visitor[TableInfo]) error {
	q := query{op: "list tables", typ: unix.NFT_MSG_GETTABLE, table: Table{Family: fam}}
	return visitObjects(ctx, c, q, parseTable, v)
}

// Chains visits the chains of a table, none if there is no such table.
func (c *Conn) Chains(ctx context.Context, t Table, v Visitor[ChainInfo]) error {
	q := query{op: "list chains of", typ: unix.NFT_MSG_GETCHAIN, table: t}
	return visitObjects(ctx, c, q, parseChain, v)
}

// Rules visits the rules of a table, those of one chain in their order; none
// if there is no such table.
func (c *Conn) Rules(ctx context.Context, t Table, v Visitor[RuleInfo]) error {
	q := query{op: "list rules of", typ: unix.NFT_MSG_GETRULE, table: t}
	return visitObjects(ctx, c, q, parseRule, v)
}

// HaveAll reports whether the chains of all rules are in a list of chains. One that was
// interrupted may lack some.
func HaveAll(chains []ChainInfo, rules []RuleInfo) bool {
	listed := make(map[string]bool, len(chains))
	for i := range chains {
		listed[chains[i].Name] = true
	}
	return !slices.ContainsFunc(rules, func(r RuleInfo) bool { return !listed[r.Chain] })
}

// Sets visits the sets and maps of a table, the anonymous ones included. It is
// an error if there is no such table (ENOENT).
func (c *Conn) Sets(ctx context.Context, t Table, v Visitor[SetInfo]) error {
	q := query{op: "list sets of", typ: unix.NFT_MSG_GETSET, table: t}
	return visitObjects(ctx, c, q, parseSet, v)
}

// visitObjects visits objects of which there is one in a message.
func visitObjects[T any](ctx context.Context, c *Conn, q query, parse func(attrs) (T, error), v Visitor[T]) error {
	return c.visit(ctx, q, reader{begin: v.Begin, consistent: v.Consistent, each: func(a attrs) error {
		if q.table.Name != "" && !belongs(a, q.table.Name) {
			return nil
		}
		item, err := parse(a)
		if err != nil {
			return err
		}
		return v.Each(&item)
	}})
}

// belongs reports whether an object is in the table. The kernel is asked for
// one table only, which not every kernel and not every dump heeds.
func belongs(a attrs, table string) bool {
	return string(getText(a.find(unix.NFTA_TABLE_NAME))) == table
}

func parseTable(a attrs) (TableInfo, error) {
	var i TableInfo
	for {
		typ, v, ok := a.next()
		if !ok {
			return i, a.err()
		}
		switch typ {
		case unix.NFTA_TABLE_NAME:
			i.Name = string(getText(v))
		case unix.NFTA_TABLE_FLAGS:
			i.Flags = getUint32(v)
		case attrTableUserdata:
			i.Userdata = string(v)
		}
	}
}

const policyDrop = 0 // NF_DROP

func parseChain(a attrs) (ChainInfo, error) {
	var i ChainInfo
	for {
		typ, v, ok := a.next()
		if !ok {
			return i, a.err()
		}
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			i.Name = string(getText(v))
		case unix.NFTA_CHAIN_TYPE:
			i.Base.Type = string(getText(v))
		case unix.NFTA_CHAIN_HOOK:
			i.Base.Hook = Hook(getUint32(attrs(v).find(unix.NFTA_HOOK_HOOKNUM)))
			i.Base.Priority = int32(getUint32(attrs(v).find(unix.NFTA_HOOK_PRIORITY)))
		case unix.NFTA_CHAIN_POLICY:
			i.Base.Drop = getUint32(v) == policyDrop
		case attrChainUserdata:
			i.Userdata = string(v)
		}
	}
}

func parseRule(a attrs) (RuleInfo, error) {
	var i RuleInfo
	for {
		typ, v, ok := a.next()
		if !ok {
			return i, a.err()
		}
		switch typ {
		case unix.NFTA_RULE_CHAIN:
			i.Chain = string(getText(v))
		case unix.NFTA_RULE_HANDLE:
			i.Handle = getUint64(v)
		case unix.NFTA_RULE_USERDATA:
			i.Userdata = string(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			i.steps = v
		}
	}
}

func parseSet(a attrs) (SetInfo, error) {
	i := SetInfo{Count: -1}
	for {
		typ, v, ok := a.next()
		if !ok {
			return i, a.err()
		}
		switch typ {
		case unix.NFTA_SET_NAME:
			i.Name = string(getText(v))
		case unix.NFTA_SET_FLAGS:
			i.Flags = SetFlags(getUint32(v))
		case unix.NFTA_SET_KEY_TYPE:
			i.KeyType = getUint32(v)
		case unix.NFTA_SET_KEY_LEN:
			i.KeyLen = getUint32(v)
		case unix.NFTA_SET_DATA_TYPE:
			i.DataType = getUint32(v)
		case unix.NFTA_SET_DATA_LEN:
			i.DataLen = getUint32(v)
		case unix.NFTA_SET_TIMEOUT:
			i.Timeout = milliseconds(v)
		case unix.NFTA_SET_USERDATA:
			i.Userdata = string(v)
		case unix.NFTA_SET_DESC:
			i.parseDesc(v)
		case attrSetExpr, attrSetExprs:
			i.Stateful = true
		case attrSetCount:
			i.Count = int(getUint32(v))
		}
	}
}

// parseDesc reads the size and the fields of a concatenation of ranges.
func (s *SetSpec) parseDesc(desc attrs) {
	s.Size = getUint32(desc.find(unix.NFTA_SET_DESC_SIZE))
	fields := attrs(desc.find(attrSetDescConcat))
	for i := range s.FieldLens {
		_, v, ok := fields.next()
		if !ok {
			return
		}
		s.FieldLens[i] = uint8(getUint32(attrs(v).find(attrSetFieldLen)))
	}
}

// milliseconds reads a time, which the kernel gives as a 64-bit number of
// milliseconds; one that no Duration can hold becomes the longest.
func milliseconds(v []byte) time.Duration {
	const longest = 1<<63 - 1
	ms := getUint64(v)
	if ms > longest/uint64(time.Millisecond) {
		return longest
	}
	return time.Duration(ms) * time.Millisecond
}
