package nfnetlink

import (
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Set is a set or a map to create.
type Set struct {
	Name string
	// Key are the fields of a key, one to five selectors.
	Key []Selector
	// Data, if any, makes the set a map and are the fields of its data.
	Data []Selector
	// Verdicts makes the set a verdict map; Data must then be empty.
	Verdicts bool
	Flags    SetFlags
	// Size is the maximum number of elements (one more is ENFILE). Zero is no limit.
	// In a set with a size the kernel adds and finds elements faster, and dumps are
	// reliable; see [Conn.Elements].
	Size uint32
}

// SetSpec is the definition of a set, as the kernel lists it. Sets with equal specs are
// interchangeable.
type SetSpec struct {
	Name  string
	Flags SetFlags
	// KeyType and DataType are nft's numbers of the types, the lengths are
	// in bytes. A set that is not a map has no data.
	KeyType, KeyLen   uint32
	DataType, DataLen uint32
	Size              uint32
	// Timeout is the default timeout of elements in milliseconds, zero in sets to create.
	Timeout uint64
	// Userdata is nft's own description of the set.
	Userdata string
	// Stateful is true if elements get expressions, such as a limit, which decide
	// whether a rule that finds the element continues.
	Stateful bool
}

const (
	attrSetExpr  = 17 // NFTA_SET_EXPR
	attrSetExprs = 18 // NFTA_SET_EXPRESSIONS
	attrSetCount = 20 // NFTA_SET_COUNT
)

// Spec returns the set as the kernel lists it in a table of the family.
func (s *Set) Spec(fam Family) SetSpec {
	spec := SetSpec{
		Name:     s.Name,
		Flags:    s.Flags,
		KeyType:  datatype(fam, s.Key),
		KeyLen:   uint32(fieldsLen(fam, s.Key)),
		Size:     s.Size,
		Userdata: string(s.userdata(fam)),
	}
	if data := s.data(); len(data) > 0 {
		spec.Flags |= setMap
		spec.DataType, spec.DataLen = datatype(fam, data), uint32(fieldsLen(fam, data))
	}
	return spec
}

// data returns the fields of the data of a map.
func (s *Set) data() []Selector {
	if s.Verdicts {
		return []Selector{verdict}
	}
	return s.Data
}

// userdata returns the user data that nft needs to print the set in typeof notation.
func (s *Set) userdata(fam Family) []byte {
	data := s.data()
	b := appendUdataUint32(nil, udataSetKeyOrder, byteOrder(fam, s.Key))
	if len(data) > 0 {
		b = appendUdataUint32(b, udataSetDataOrder, byteOrder(fam, data))
	}
	b = appendTypeof(b, udataSetKeyTypeof, fam, s.Key)
	if len(data) > 0 {
		b = appendTypeof(b, udataSetDataTypeof, fam, data)
		b = appendUdataUint32(b, udataSetDataInterval, 0)
	}
	return b
}

// AddSet creates a set, or keeps the one of that name, with its elements, if it
// has the same types and flags; otherwise it is an error (EEXIST). A kept set keeps its
// user data. Recent kernels (such as 6.18) change its size, older ones keep it;
// [Conn.Sets] returns the actual one.
func (b *Batch) AddSet(t Table, s *Set) {
	spec := s.Spec(t.Family)
	b.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t, spec.Name)
	b.appendSpec(&spec)
	b.end()
}

func (b *Batch) appendSpec(spec *SetSpec) {
	b.buf = appendUint32(b.buf, unix.NFTA_SET_FLAGS, uint32(spec.Flags))
	b.buf = appendUint32(b.buf, unix.NFTA_SET_KEY_TYPE, spec.KeyType)
	b.buf = appendUint32(b.buf, unix.NFTA_SET_KEY_LEN, spec.KeyLen)
	if spec.DataLen > 0 {
		b.buf = appendUint32(b.buf, unix.NFTA_SET_DATA_TYPE, spec.DataType)
		b.buf = appendUint32(b.buf, unix.NFTA_SET_DATA_LEN, spec.DataLen)
	}
	// The kernel needs a number that no other set of the batch has.
	b.buf = appendUint32(b.buf, unix.NFTA_SET_ID, uint32(b.messages))
	b.buf = rawnetlink.AppendAttr(b.buf, unix.NFTA_SET_USERDATA, spec.Userdata)
	desc := b.nest(unix.NFTA_SET_DESC)
	if spec.Size > 0 {
		b.buf = appendUint32(b.buf, unix.NFTA_SET_DESC_SIZE, spec.Size)
	}
	b.close(desc)
}

// DelSet removes a set and its elements. It must exist, and no rule must use it.
func (b *Batch) DelSet(t Table, name string) { b.begin(unix.NFT_MSG_DELSET, 0, t, name) }
