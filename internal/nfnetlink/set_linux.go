package nfnetlink

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a set or a map to create.
type Set struct {
	// Name is the name; empty makes an anonymous set, which lives as long
	// as the rule that is added for it in the same batch.
	Name string
	// Key is what a key consists of, one to five selectors.
	Key []Selector
	// Data, if any, makes the set a map and is what its data consist of.
	Data []Selector
	// Verdicts makes the set a map to verdicts; Data must then be empty.
	Verdicts bool
	Flags    SetFlags
	// Timeout is the life of elements that have none of their own; zero
	// is for ever. It needs SetTimeout and is in whole seconds, because the
	// kernel rounds to its clock and then shows another one.
	Timeout time.Duration
	// Size is the most elements that the set will hold, a hard limit (one
	// more is ENFILE). Zero is no limit. With a size the kernel loads and
	// looks up faster, and dumps reliably; see [Conn.Elements].
	Size uint32
	// Comment is shown by nft; may be empty.
	Comment string
}

// SetSpec is everything about a set that is chosen when it is created, as the
// kernel keeps it. Two sets with equal specs can take the place of each other.
type SetSpec struct {
	Name  string
	Flags SetFlags
	// KeyType and DataType are nft's numbers of the types, the lengths are
	// in bytes. A set that is no map has no data.
	KeyType, KeyLen   uint32
	DataType, DataLen uint32
	// FieldLens are the lengths of the fields of a concatenation of ranges.
	FieldLens [maxFields]uint8
	Size      uint32
	Timeout   time.Duration
	// Userdata is what nft keeps about the set.
	Userdata string
	// Stateful says that elements get expressions, such as a limit, which decide
	// whether a rule that finds one goes on.
	Stateful bool
}

const (
	maxFields = 5 // of six bits each, in a 32-bit type number

	// AnonymousSetName is what a rule calls an anonymous set, beside its
	// number; the kernel replaces it.
	AnonymousSetName = "__set%d"

	attrSetDescConcat = 2  // NFTA_SET_DESC_CONCAT
	attrSetFieldLen   = 1  // NFTA_SET_FIELD_LEN
	attrSetExpr       = 17 // NFTA_SET_EXPR
	attrSetExprs      = 18 // NFTA_SET_EXPRESSIONS
	attrSetCount      = 20 // NFTA_SET_COUNT
)

var errSet = errors.New("impossible set")

// Spec returns the set as the kernel shows it in a table of the family.
func (s *Set) Spec(fam Family) SetSpec {
	spec := SetSpec{
		Name:     s.Name,
		Flags:    s.flags(),
		KeyType:  datatype(fam, s.Key),
		KeyLen:   uint32(Len(fam, s.Key...)),
		Size:     s.Size,
		Timeout:  s.Timeout,
		Userdata: string(s.userdata(fam)),
	}
	if s.Name == "" {
		spec.Name = AnonymousSetName
	}
	switch {
	case s.Verdicts:
		spec.DataType, spec.DataLen = typeVerdict, verdictDataLen
	case len(s.Data) > 0:
		spec.DataType, spec.DataLen = datatype(fam, s.Data), uint32(Len(fam, s.Data...))
	}
	if spec.Flags&setConcat != 0 {
		for i, sel := range s.Key {
			spec.FieldLens[i] = uint8(sel.field(fam).size)
		}
	}
	return spec
}

func (s *Set) isMap() bool { return s.Verdicts || len(s.Data) > 0 }

func (s *Set) flags() SetFlags {
	f := s.Flags
	if s.Name == "" {
		f |= setAnonymous | SetConstant
	}
	if s.isMap() {
		f |= setMap
	}
	if f&SetInterval != 0 && len(s.Key) > 1 {
		f |= setConcat
	}
	return f
}

// userdata returns what nft needs to print the set in typeof notation.
func (s *Set) userdata(fam Family) []byte {
	b := make([]byte, 0, maxUdata)
	b = appendUdataUint32(b, udataSetKeyOrder, byteOrder(fam, s.Key))
	if s.isMap() {
		b = appendUdataUint32(b, udataSetDataOrder, byteOrder(fam, s.Data))
	}
	b = appendTypeof(b, udataSetKeyTypeof, fam, s.Key)
	if s.isMap() {
		if s.Verdicts {
			b = appendVerdictTypeof(b)
		} else {
			b = appendTypeof(b, udataSetDataTypeof, fam, s.Data)
		}
		b = appendUdataUint32(b, udataSetDataInterval, 0)
	}
	return appendUdataText(b, udataSetComment, s.Comment)
}

// check returns what is wrong with the set, apart from what only the kernel
// can tell.
func (s *Set) check() error {
	if s.Name != "" {
		if err := checkName(s.Name); err != nil {
			return err
		}
	}
	const allowed = SetConstant | SetInterval | SetTimeout | SetDynamic
	switch {
	case len(s.Key) == 0 || len(s.Key) > maxFields || len(s.Data) > maxFields:
		return fmt.Errorf("set %q has %d key and %d data fields: %w", s.Name, len(s.Key), len(s.Data), errSet)
	case !known(s.Key) || !known(s.Data):
		return fmt.Errorf("set %q has an unknown selector: %w", s.Name, errSet)
	case s.Verdicts && len(s.Data) > 0:
		return fmt.Errorf("set %q maps to data and to verdicts: %w", s.Name, errSet)
	case s.Flags&^allowed != 0:
		return fmt.Errorf("set %q has unknown flags %#x: %w", s.Name, s.Flags&^allowed, errSet)
	case s.Timeout < 0 || s.Timeout%time.Second != 0:
		return fmt.Errorf("set %q has timeout %v: %w", s.Name, s.Timeout, errSet)
	}
	return checkComment(s.Comment)
}

// AddSet creates a set, or keeps the one of that name, with its elements, if it
// has the same types and flags; else it is an error (EEXIST). Kept user data
// stay as they are. Size and timeout are taken over by recent kernels (6.18
// does) and ignored by older ones; [Conn.Sets] shows what is true. The number
// that AddSet returns is for anonymous sets: give it to
// [Batch.AnonymousElements] and, with [AnonymousSetName], to the look-up
// expression of the rule in this batch that uses the set.
func (b *Batch) AddSet(t Table, s *Set) uint32 {
	b.sets++
	if err := s.check(); err != nil {
		b.fail(err)
		return b.sets
	}
	spec := s.Spec(t.Family)
	if len(spec.Userdata) > maxUdata {
		b.fail(fmt.Errorf("set %q needs %d bytes of user data: %w", s.Name, len(spec.Userdata), errSet))
		return b.sets
	}
	b.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t, spec.Name)
	b.appendSpec(&spec, len(s.Key))
	b.end()
	return b.sets
}

func (b *Batch) appendSpec(spec *SetSpec, fields int) {
	b.buf = appendUint32(b.buf, unix.NFTA_SET_FLAGS, uint32(spec.Flags))
	b.buf = appendUint32(b.buf, unix.NFTA_SET_KEY_TYPE, spec.KeyType)
	b.buf = appendUint32(b.buf, unix.NFTA_SET_KEY_LEN, spec.KeyLen)
	if spec.DataLen > 0 {
		b.buf = appendUint32(b.buf, unix.NFTA_SET_DATA_TYPE, spec.DataType)
		b.buf = appendUint32(b.buf, unix.NFTA_SET_DATA_LEN, spec.DataLen)
	}
	b.buf = appendUint32(b.buf, unix.NFTA_SET_ID, b.sets)
	if spec.Timeout > 0 {
		b.buf = appendUint64(b.buf, unix.NFTA_SET_TIMEOUT, uint64(spec.Timeout.Milliseconds()))
	}
	b.buf = appendHeader(b.buf, unix.NFTA_SET_USERDATA, len(spec.Userdata))
	b.buf = pad(append(b.buf, spec.Userdata...))

	desc := b.nest(unix.NFTA_SET_DESC)
	if spec.Size > 0 {
		b.buf = appendUint32(b.buf, unix.NFTA_SET_DESC_SIZE, spec.Size)
	}
	if spec.Flags&setConcat != 0 {
		list := b.nest(attrSetDescConcat)
		for _, size := range spec.FieldLens[:fields] {
			elem := b.nest(unix.NFTA_LIST_ELEM)
			b.buf = appendUint32(b.buf, attrSetFieldLen, uint32(size))
			b.close(elem)
		}
		b.close(list)
	}
	b.close(desc)
}

// DelSet removes a set and its elements. It must exist and no rule may use it.
func (b *Batch) DelSet(t Table, name string) {
	b.begin(unix.NFT_MSG_DELSET, 0, t, name)
	b.end()
}

// FlushSet removes all elements of a set.
func (b *Batch) FlushSet(t Table, name string) {
	b.begin(unix.NFT_MSG_DELSETELEM, 0, t, name)
	b.end()
}
