// Package ipset writes and reads the sets of the kernel's ipset over netlink, as far as a proxy
// for Services needs them: sets of addresses, ports and networks, with marks.
//
//	conn, err := ipset.Open() // in the network namespace of the calling thread
//	err = conn.Create(ctx, ipset.Set{Name: "VIPS", Type: ipset.HashIP, MaxElem: 1 << 20})
//	failed, err := conn.Do(ctx, []ipset.Op{{Set: "VIPS", Entry: ipset.Entry{Addr: addr}}})
//
// # Adding and deleting
//
// [Conn.Do] carries out any number of operations on any sets. It puts consecutive operations of
// one kind on one set into one message of up to 60,000 bytes, which is 1,800 short entries,
// and sends two such messages with one system call. All operations are idempotent: adding an
// entry that exists gives it the new mark, deleting a missing one succeeds.
//
// The kernel stops at the first entry of a message that it refuses, and goes on with the next
// message. Do then sends the operations of that system call again, each in a message of its
// own. So all operations are carried out except those that Do returns as failed.
//
// # Reading
//
// The kernel does not lock a set while it lists the entries, and does not tell whether they
// have changed. [Conn.Entries] returns an entry that exists during the whole call exactly once,
// whatever else is added or deleted, and whether the set grows or not. It may return an entry
// that is added or deleted meanwhile, or not. Marks are those of some moment of the call. The
// kernel refuses to destroy a set while a program lists it.
//
// # Limits
//
// The kernel counts the entries of a large set in several parts, and reuses the space of
// deleted entries without counting, so a set may hold slightly more than [Set].MaxElem. The
// default is 65,536. A large MaxElem costs no memory.
package ipset
