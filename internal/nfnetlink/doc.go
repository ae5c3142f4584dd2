// Package nfnetlink is a thin edge to nf_tables: it encodes transactions by
// hand, sends each with one system call and reads the ruleset back.
//
// It exists for cost. A transaction is built in one buffer that is used again
// for the next one, adding an element to a set allocates nothing, the whole
// transaction is one sendmsg and is acknowledged once, after the commit. Only
// the expressions of rules, of which there are few, are encoded by
// github.com/google/nftables/expr.
//
// # Writing
//
// A [Batch] collects changes, [Conn.Commit] applies all of them or none:
//
//	var b nfnetlink.Batch
//	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: "web"}
//	b.AddTable(table, "")
//	b.AddSet(table, &nfnetlink.Set{Name: "peers", Key: []nfnetlink.Selector{nfnetlink.SourceAddr}})
//	w := b.Elements(nfnetlink.OpAdd, table, "peers")
//	w.Key([]byte{192, 0, 2, 1})
//	err := conn.Commit(ctx, &b)
//
// Building never fails: the first mistake is kept and Commit returns it. What
// the kernel refuses comes back as an [*Error] that names the object, and the
// element where the kernel tells it. A transaction that does not fit into the
// send buffer is refused before it is sent, with a [*SizeError].
//
// # Reading
//
// The dumps ([Conn.Tables], [Conn.Chains], [Conn.Rules], [Conn.Sets] and
// [Conn.Elements]) stream into a [Visitor]. A commit by any program in the
// network namespace interrupts a dump; it is then started again, which the
// visitor is told. Attributes, user data and expressions that this package
// does not know are passed over, so tables of other programs do no harm.
//
// # Types
//
// The kernel does not know what the bytes of a key mean, but nft does, and it
// aborts on the whole ruleset, of all programs, when the types of one set make
// no sense to it. Sets are therefore described by [Selector]s, from which the
// type numbers, the lengths and the user data of nft's typeof notation follow.
// What nft prints for such a set can be loaded again.
package nfnetlink
