package filestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/allocator"
)

const (
	// header begins every file. It names the version of the form.
	header = "vipkit allocations 1\n"
	// mark begins every frame, so that frames behind a damaged one are found.
	mark = 0x6b767ef1
	// frameHead is the length of mark, length and checksum.
	frameHead = 12
	// maxFrame bounds what is read at once.
	maxFrame = 1 << 30
)

var errShort = errors.New("record ends too early")

// flags of a change.
const (
	flagDeleted = 1 << iota
	flagBound
)

// appendFrame appends a frame with changes.
func appendFrame(b []byte, changes []allocator.Event) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHead)...)
	for _, e := range changes {
		b = appendChange(b, e)
	}
	body := b[start+frameHead:]
	binary.LittleEndian.PutUint32(b[start:], mark)
	binary.LittleEndian.PutUint32(b[start+4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[start+8:], checksum(body))
	return b
}

func checksum(body []byte) uint32 {
	return crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
}

// appendChange appends one change: flags, version and key, and unless it is a
// deletion owner, token and times.
func appendChange(b []byte, e allocator.Event) []byte {
	c := e.Claim
	var flags byte
	if e.Deleted {
		flags |= flagDeleted
	}
	if c.IsBound() {
		flags |= flagBound
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(c.Version))
	b = appendKey(b, c.Key)
	if e.Deleted {
		return b
	}
	b = appendText(b, string(c.Owner))
	b = binary.LittleEndian.AppendUint64(b, c.Token)
	since := int64(0) // stands for no time
	if !c.Since.IsZero() {
		since = c.Since.UnixNano()
	}
	b = binary.AppendVarint(b, since)
	if !c.IsBound() {
		b = binary.AppendVarint(b, c.Expires.UnixNano())
	}
	return b
}

// appendKey appends the kind of a key and its 4, 16 or 2 bytes.
func appendKey(b []byte, k allocator.Key) []byte {
	b = append(b, byte(k.Kind()))
	switch k.Kind() {
	case allocator.IPv4:
		four := k.Addr().As4()
		return append(b, four[:]...)
	case allocator.IPv6:
		sixteen := k.Addr().As16()
		return append(b, sixteen[:]...)
	default:
		return binary.BigEndian.AppendUint16(b, k.Port())
	}
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// readFrame reads the frame at the beginning of b, and says how long it is. It is
// 0 if there is no whole and sound frame.
func readFrame(b []byte) (body []byte, length int) {
	if len(b) < frameHead || binary.LittleEndian.Uint32(b) != mark {
		return nil, 0
	}
	size := binary.LittleEndian.Uint32(b[4:])
	if size > maxFrame || int(size) > len(b)-frameHead {
		return nil, 0
	}
	body = b[frameHead : frameHead+int(size)]
	if checksum(body) != binary.LittleEndian.Uint32(b[8:]) {
		return nil, 0
	}
	return body, frameHead + int(size)
}

// hasFrame reports whether a sound frame begins anywhere in b.
func hasFrame(b []byte) bool {
	var sign [4]byte
	binary.LittleEndian.PutUint32(sign[:], mark)
	for {
		at := bytes.Index(b, sign[:])
		if at < 0 {
			return false
		}
		if _, length := readFrame(b[at:]); length > 0 {
			return true
		}
		b = b[at+1:]
	}
}

// reader takes a body apart. After the first error it gives zeros.
type reader struct {
	b   []byte
	err error
}

// readChanges gives the changes of a frame.
func readChanges(body []byte) ([]allocator.Event, error) {
	var changes []allocator.Event
	r := &reader{b: body}
	for len(r.b) > 0 && r.err == nil {
		changes = append(changes, r.change())
	}
	return changes, r.err
}

func (r *reader) change() allocator.Event {
	flags := r.take(1)
	if r.err != nil {
		return allocator.Event{}
	}
	e := allocator.Event{Deleted: flags[0]&flagDeleted != 0}
	e.Claim.Version = allocator.Version(r.uvarint())
	e.Claim.Key = r.key()
	if e.Deleted {
		return e
	}
	e.Claim.Owner = allocator.Owner(r.text())
	if token := r.take(8); r.err == nil {
		e.Claim.Token = binary.LittleEndian.Uint64(token)
	}
	if since := r.time(); since.UnixNano() != 0 {
		e.Claim.Since = since
	}
	if flags[0]&flagBound == 0 {
		e.Claim.Expires = r.time()
	}
	if e.Claim.Version == 0 || e.Claim.Owner == "" {
		r.fail(fmt.Errorf("claim of %v without version or owner", e.Claim.Key))
	}
	return e
}

func (r *reader) key() allocator.Key {
	var k allocator.Key
	kind := r.take(1)
	if r.err != nil {
		return k
	}
	switch allocator.Kind(kind[0]) {
	case allocator.IPv4:
		addr, _ := netip.AddrFromSlice(r.take(4))
		k = allocator.AddrKey(addr)
	case allocator.IPv6:
		addr, _ := netip.AddrFromSlice(r.take(16))
		k = allocator.AddrKey(addr)
	case allocator.Port:
		if b := r.take(2); r.err == nil {
			k = allocator.PortKey(binary.BigEndian.Uint16(b))
		}
	default:
	}
	if k.Kind() != allocator.Kind(kind[0]) || k == (allocator.Key{}) {
		r.fail(fmt.Errorf("key of kind %d that is none", kind[0]))
	}
	return k
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) take(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.b)) {
		r.fail(errShort)
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) text() []byte { return r.take(r.uvarint()) }

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) time() time.Time {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return time.Time{}
	}
	r.b = r.b[n:]
	return time.Unix(0, v).UTC()
}
