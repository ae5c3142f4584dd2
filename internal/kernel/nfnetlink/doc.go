// Package nfnetlink is a thin layer over nf_tables: it encodes transactions, sends each
// with one system call and reads the ruleset.
//
// It exists for its low cost. A batch reuses its buffer for the next transaction,
// adding an element to a set allocates nothing, and the kernel acknowledges a
// transaction once, after the commit. The caller encodes the expressions of rules, as
// package nft does.
//
// # Writing
//
// A [Batch] collects changes, [Conn.Commit] applies all of them or none:
//
//	var b nfnetlink.Batch
//	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: "web"}
//	b.AddTable(table)
//	b.AddSet(table, &nfnetlink.Set{Name: "peers", Key: []nfnetlink.Selector{nfnetlink.SourceAddr}})
//	w := b.Elements(nfnetlink.OpAdd, table, "peers")
//	w.Key([]byte{192, 0, 2, 1})
//	err := conn.Commit(ctx, &b)
//
// Building returns no error: the batch keeps the first one, and Commit returns it. If the
// kernel refuses a transaction, Commit returns an [*Error] that names the object, and
// the element if the kernel names it. Commit refuses a transaction that does not fit
// into the send buffer before it is sent, with a [*SizeError].
//
// # Reading
//
// The dumps ([Conn.Tables], [Conn.Chains], [Conn.Rules], [Conn.Sets] and
// [Conn.Elements]) stream into a [Visitor]. A commit by any program in the network
// namespace interrupts a dump, which is then started again after a call of
// Visitor.Begin. The dumps skip attributes, user data and expressions that this package
// does not know, so tables of other programs do no harm.
//
// # Types
//
// The kernel does not interpret the bytes of a key, but nft does, and it fails for the
// whole ruleset of all programs if it does not understand the types of one set. Sets
// are therefore defined by [Selector]s, from which this package derives the type
// numbers, the lengths and the user data of nft's typeof notation. nft can load its own
// listing of such a set.
package nfnetlink
