package nfnetlink

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Batch is a transaction under construction: changes that the kernel applies
// all at once or not at all, in the order in which they were added. The zero
// value is an empty batch. The first mistake is kept; see [Batch.Err].
//
// A Batch must not be used by several goroutines at once.
type Batch struct {
	buf      []byte
	last     int // offset of the latest message
	messages int
	elements int
	sets     uint32 // sets added; each has its own number in the batch
	serial   uint64 // messages ever begun, through all resets
	err      error
}

// Reset empties the batch and keeps its buffer for the next transaction.
func (b *Batch) Reset() { *b = Batch{buf: b.buf[:0], serial: b.serial} }

// Empty reports whether there is nothing to commit.
func (b *Batch) Empty() bool { return b.messages == 0 }

// Len returns the bytes that [Conn.Commit] would send, to be compared with
// [Conn.MaxBatch].
func (b *Batch) Len() int {
	if b.Empty() {
		return 0
	}
	return len(b.buf) + headerLen
}

// Messages returns how many messages the batch consists of, without the two
// that frame it.
func (b *Batch) Messages() int { return b.messages }

// ElementCount returns how many elements are added and removed one by one.
func (b *Batch) ElementCount() int { return b.elements }

// Err returns the first mistake made while building the batch: a name or
// comment that nft could not read back, an impossible set, or something that
// is too long. Commit refuses such a batch with the same error.
func (b *Batch) Err() error { return b.err }

func (b *Batch) fail(err error) {
	if b.err == nil {
		b.err = fmt.Errorf("nfnetlink: %w", err)
	}
}

// header appends a header. The sequence number is filled in by seal.
func (b *Batch) header(typ, flags uint16, fam Family, resource uint16) {
	b.last = len(b.buf)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, headerLen)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, typ)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = append(b.buf, 0, 0, 0, 0, 0, 0, 0, 0)
	b.buf = append(b.buf, byte(fam), unix.NFNETLINK_V0)
	b.buf = binary.BigEndian.AppendUint16(b.buf, resource)
}

// begin starts a message about a table or, where nameAttr knows one for the
// type, about an object in it with a name.
func (b *Batch) begin(typ, flags uint16, t Table, name string) {
	if len(t.Name) == 0 || len(t.Name) > maxName {
		b.fail(fmt.Errorf("table %q: %w", t.Name, errName))
	}
	attr := nameAttr(typ)
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
	b.buf = appendString(b.buf, unix.NFTA_TABLE_NAME, t.Name)
	if attr != 0 {
		b.buf = appendString(b.buf, attr, name)
	}
}

// end fills in the length of the latest message.
func (b *Batch) end() {
	binary.NativeEndian.PutUint32(b.buf[b.last:], uint32(len(b.buf)-b.last))
}

func (b *Batch) nest(typ uint16) (offset int) {
	b.buf, offset = openNested(b.buf, typ)
	return offset
}

func (b *Batch) close(offset int) {
	if !closeNested(b.buf, offset) {
		b.fail(fmt.Errorf("message %d: an attribute of %d bytes is too long", b.messages, len(b.buf)-offset))
	}
}

// comment appends the user data of an object with a comment, if it has one.
func (b *Batch) comment(attr uint16, comment string) {
	if err := checkComment(comment); err != nil {
		b.fail(err)
		return
	}
	if comment == "" {
		return
	}
	b.buf = appendHeader(b.buf, attr, 2+len(comment)+1)
	b.buf = pad(appendUdataText(b.buf, udataComment, comment))
}

const attrTableUserdata = 6 // NFTA_TABLE_USERDATA

// AddTable creates a table, or keeps the one that exists, with its comment.
func (b *Batch) AddTable(t Table, comment string) {
	if err := checkName(t.Name); err != nil {
		b.fail(err)
	}
	b.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, "")
	b.comment(attrTableUserdata, comment)
	b.end()
}

// WakeTable has a table see packets again that somebody has made dormant.
func (b *Batch) WakeTable(t Table) {
	b.begin(unix.NFT_MSG_NEWTABLE, 0, t, "")
	b.buf = appendUint32(b.buf, unix.NFTA_TABLE_FLAGS, 0)
	b.end()
}

// DelTable removes a table with everything in it. It must exist.
func (b *Batch) DelTable(t Table) {
	b.begin(unix.NFT_MSG_DELTABLE, 0, t, "")
	b.end()
}

// DestroyTable removes a table if it exists. It does so on every kernel, by
// creating it first.
func (b *Batch) DestroyTable(t Table) {
	b.AddTable(t, "")
	b.DelTable(t)
}

const attrChainUserdata = 12 // NFTA_CHAIN_USERDATA

// AddChain creates a chain, or keeps the one that exists, with its rules and
// comment. One that exists with another Base is an error (EEXIST).
func (b *Batch) AddChain(t Table, c Chain) {
	if err := checkName(c.Name); err != nil {
		b.fail(err)
	}
	b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t, c.Name)
	if c.Base.Type != "" {
		hook := b.nest(unix.NFTA_CHAIN_HOOK)
		b.buf = appendUint32(b.buf, unix.NFTA_HOOK_HOOKNUM, uint32(c.Base.Hook))
		b.buf = appendUint32(b.buf, unix.NFTA_HOOK_PRIORITY, uint32(c.Base.Priority))
		b.close(hook)
		b.buf = appendString(b.buf, unix.NFTA_CHAIN_TYPE, c.Base.Type)
		if c.Base.Drop {
			b.buf = appendUint32(b.buf, unix.NFTA_CHAIN_POLICY, policyDrop)
		}
	}
	b.comment(attrChainUserdata, c.Comment)
	b.end()
}

// DelChain removes a chain and its rules. It must exist, and no rule or
// element may lead to it (EBUSY).
func (b *Batch) DelChain(t Table, name string) {
	b.begin(unix.NFT_MSG_DELCHAIN, 0, t, name)
	b.end()
}

// FlushChain removes all rules of a chain.
func (b *Batch) FlushChain(t Table, name string) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t, name)
	b.end()
}

// AddRule appends a rule to a chain, with user data such as a [Tag]; nil: none.
func (b *Batch) AddRule(t Table, chain string, exprs []expr.Any, userdata []byte) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t, chain)
	list := b.nest(unix.NFTA_RULE_EXPRESSIONS)
	for i, e := range exprs {
		enc, err := expr.Marshal(byte(t.Family), e)
		if err != nil {
			b.fail(fmt.Errorf("expression %d (%T) of a rule of chain %q: %w", i, e, chain, err))
			break
		}
		elem := b.nest(unix.NFTA_LIST_ELEM)
		b.buf = append(b.buf, enc...)
		b.close(elem)
	}
	b.close(list)
	b.ruleData(userdata)
	b.end()
}

// DelRule removes one rule of a chain. It must exist (ENOENT).
func (b *Batch) DelRule(t Table, chain string, handle uint64) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t, chain)
	b.buf = appendUint64(b.buf, unix.NFTA_RULE_HANDLE, handle)
	b.end()
}

// seal returns the transaction ready to send, with the messages numbered from
// seq on. The acknowledgement is asked for on the last real message: it is
// delivered after the commit. unseal must follow.
func (b *Batch) seal(seq uint32) []byte {
	for rest := b.buf; len(rest) > 0; seq++ {
		binary.NativeEndian.PutUint32(rest[8:], seq)
		rest = rest[align(int(binary.NativeEndian.Uint32(rest))):]
	}
	last := b.last
	b.setAck(unix.NLM_F_ACK)
	b.header(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	binary.NativeEndian.PutUint32(b.buf[b.last+8:], seq)
	b.last = last
	return b.buf
}

// unseal makes the batch what it was before seal, so that it can be extended
// or committed again.
func (b *Batch) unseal() {
	b.buf = b.buf[:len(b.buf)-headerLen]
	b.setAck(0)
}

func (b *Batch) setAck(ack uint16) {
	flags := b.buf[b.last+6:]
	old := binary.NativeEndian.Uint16(flags)
	binary.NativeEndian.PutUint16(flags, old&^unix.NLM_F_ACK|ack)
}

// at returns message i, counted like the numbers that seal gives: message 0
// is the frame. Nil when there is none.
func (b *Batch) at(i uint32) []byte {
	rest := b.buf
	for ; i > 0 && len(rest) > 0; i-- {
		rest = rest[align(int(binary.NativeEndian.Uint32(rest))):]
	}
	if len(rest) == 0 {
		return nil
	}
	return rest[:binary.NativeEndian.Uint32(rest)]
}
