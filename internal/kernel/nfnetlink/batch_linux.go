package nfnetlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Batch is a transaction under construction: changes that the kernel applies
// all at once or not at all, in the order in which they were added. The zero
// value is an empty batch. A batch keeps the first error; see [Batch.Err].
//
// A Batch must not be used by several goroutines at once.
type Batch struct {
	buf      []byte
	last     int    // offset of the latest message
	messages int    // without the begin and end messages of the batch
	serial   uint64 // messages ever begun; Reset keeps it
	err      error
}

// Reset empties the batch and keeps its buffer for the next transaction.
func (b *Batch) Reset() { *b = Batch{buf: b.buf[:0], serial: b.serial} }

// Empty reports whether there is nothing to commit.
func (b *Batch) Empty() bool { return b.messages == 0 }

// Len returns the bytes that [Conn.Commit] would send.
func (b *Batch) Len() int {
	if b.Empty() {
		return 0
	}
	return len(b.buf) + headerLen
}

// Err returns the error of the first invalid change that was added to the batch:
// an object without a name, or one that is too long. [Conn.Commit] returns the same error and sends nothing.
func (b *Batch) Err() error { return b.err }

func (b *Batch) fail(err error) {
	if b.err == nil {
		b.err = fmt.Errorf("nfnetlink: %w", err)
	}
}

// header appends a header. The sequence number is filled in by seal.
func (b *Batch) header(typ, flags uint16, fam Family, resource uint16) {
	b.last = len(b.buf)
	b.buf = appendRequest(b.buf, typ, flags, fam)
	binary.BigEndian.PutUint16(b.buf[len(b.buf)-2:], resource)
}

// begin starts a message about a table, or about an object in it with a name.
func (b *Batch) begin(typ, flags uint16, t Table, name string) {
	if len(t.Name) == 0 || len(t.Name) > maxName {
		b.fail(fmt.Errorf("table %q: %w", t.Name, errName))
	}
	_, attr := messageKind(typ)
	if attr != 0 && (len(name) == 0 || len(name) > maxName) {
		b.fail(fmt.Errorf("%q in table %v: %w", name, t, errName))
	}
	if b.messages == 0 {
		b.header(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	}
	b.messages++
	b.serial++
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, t.Family, 0)
	// All messages have the name of the table in the same attribute.
	b.buf = rawnetlink.AppendString(b.buf, unix.NFTA_TABLE_NAME, t.Name)
	if attr != 0 {
		b.buf = rawnetlink.AppendString(b.buf, attr, name)
	}
	b.end()
}

// end fills in the length of the latest message. Call it after appending attributes to
// what begin wrote.
func (b *Batch) end() {
	binary.NativeEndian.PutUint32(b.buf[b.last:], uint32(len(b.buf)-b.last))
}

// nest starts an attribute that contains other attributes. After these, pass the offset
// to close.
func (b *Batch) nest(typ uint16) (offset int) {
	b.buf, offset = rawnetlink.Nest(b.buf, typ)
	return offset
}

// close fills in the length of the attribute at offset.
func (b *Batch) close(offset int) {
	if !rawnetlink.Close(b.buf, offset) {
		b.fail(fmt.Errorf("message %d: an attribute of %d bytes is too long", b.messages, len(b.buf)-offset))
	}
}

// AddTable creates a table, or keeps the one that exists.
func (b *Batch) AddTable(t Table) {
	b.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, "")
}

// WakeTable clears the dormant flag of a table, so that its rules see packets again.
func (b *Batch) WakeTable(t Table) {
	b.begin(unix.NFT_MSG_NEWTABLE, 0, t, "")
	b.buf = appendUint32(b.buf, unix.NFTA_TABLE_FLAGS, 0)
	b.end()
}

// DelTable removes a table with everything in it. It must exist.
func (b *Batch) DelTable(t Table) { b.begin(unix.NFT_MSG_DELTABLE, 0, t, "") }

// DestroyTable removes a table if it exists. It does so on every kernel, by
// creating it first.
func (b *Batch) DestroyTable(t Table) {
	b.AddTable(t)
	b.DelTable(t)
}

// AddChain creates a chain, or keeps the one that exists, with its rules. It is an error
// if one exists with another Base (EEXIST or EOPNOTSUPP).
func (b *Batch) AddChain(t Table, c Chain) {
	b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t, c.Name)
	if c.Base.Type != "" {
		hook := b.nest(unix.NFTA_CHAIN_HOOK)
		b.buf = appendUint32(b.buf, unix.NFTA_HOOK_HOOKNUM, uint32(c.Base.Hook))
		b.buf = appendUint32(b.buf, unix.NFTA_HOOK_PRIORITY, uint32(c.Base.Priority))
		b.close(hook)
		b.buf = rawnetlink.AppendString(b.buf, unix.NFTA_CHAIN_TYPE, c.Base.Type)
		if c.Base.Drop {
			b.buf = appendUint32(b.buf, unix.NFTA_CHAIN_POLICY, policyDrop)
		}
	}
	b.end()
}

// DelChain removes a chain and its rules. It must exist, and no rule or
// element must refer to it (EBUSY).
func (b *Batch) DelChain(t Table, name string) { b.begin(unix.NFT_MSG_DELCHAIN, 0, t, name) }

// FlushChain removes all rules of a chain.
func (b *Batch) FlushChain(t Table, name string) { b.begin(unix.NFT_MSG_DELRULE, 0, t, name) }

// AddRule appends a rule to a chain. Its expressions are encoded as a list of
// NFTA_LIST_ELEM attributes. User data is optional and in the format of [AppendTag].
func (b *Batch) AddRule(t Table, chain string, exprs, userdata []byte) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t, chain)
	list := b.nest(unix.NFTA_RULE_EXPRESSIONS)
	b.buf = append(b.buf, exprs...)
	b.close(list)
	if len(userdata) > 0 {
		b.buf = rawnetlink.AppendAttr(b.buf, unix.NFTA_RULE_USERDATA, userdata)
	}
	b.end()
}

// DelRule removes one rule of a chain. It must exist (ENOENT).
func (b *Batch) DelRule(t Table, chain string, handle uint64) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t, chain)
	b.buf = appendUint64(b.buf, unix.NFTA_RULE_HANDLE, handle)
	b.end()
}

// seal returns the transaction ready to send, with the messages numbered from
// seq on. It requests the acknowledgement of the last real message, which the kernel
// sends after the commit. The caller must call unseal afterwards.
func (b *Batch) seal(seq uint32) []byte {
	for rest := b.buf; len(rest) > 0; seq++ {
		binary.NativeEndian.PutUint32(rest[8:], seq)
		rest = rest[rawnetlink.Align(int(binary.NativeEndian.Uint32(rest))):]
	}
	last := b.last
	b.setAck(unix.NLM_F_ACK)
	b.header(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	binary.NativeEndian.PutUint32(b.buf[b.last+8:], seq)
	b.last = last
	return b.buf
}

// unseal restores the batch as it was before seal, so that it can be extended or
// committed again.
func (b *Batch) unseal() {
	b.buf = b.buf[:len(b.buf)-headerLen]
	b.setAck(0)
}

func (b *Batch) setAck(ack uint16) {
	flags := b.buf[b.last+6:]
	old := binary.NativeEndian.Uint16(flags)
	binary.NativeEndian.PutUint16(flags, old&^unix.NLM_F_ACK|ack)
}

// at returns message i, counted like the numbers that seal assigns: message 0 is the
// begin message of the batch.
func (b *Batch) at(i uint32) []byte {
	rest := b.buf
	for range i {
		rest = rest[rawnetlink.Align(int(binary.NativeEndian.Uint32(rest))):]
	}
	return rest[:binary.NativeEndian.Uint32(rest)]
}
