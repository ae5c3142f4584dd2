package filestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/allocator"
)

const (
	// title begins every file, and has the version of the format.
	title = "vipkit allocations 2\n"
	// headSize is the length of the header before the frames: title, salt, length
	// of the snapshot, checksum.
	headSize = len(title) + 4 + 8 + 4
	// mark begins every frame, so that frames after a damaged one are found.
	mark = 0x6b767ef1
	// frameHead is the length of mark, length and checksum.
	frameHead = 12
	// maxFrame is the longest body of a frame.
	maxFrame = 1 << 30
	// fullFrame is the length of a body after which the next changes get a frame of
	// their own, unless they were committed together with these.
	fullFrame = 1 << 20
)

// head is the header of a file.
type head struct {
	// salt begins the checksum of every frame. Each file has its own, at random; so
	// neither the name of an owner nor old content of the disk looks like a frame.
	salt uint32
	// snapshot is the length of the part of the file that was on the disk before
	// the file was renamed. No crash tears it.
	snapshot int64
}

func (h head) bytes() []byte {
	b := append(make([]byte, 0, headSize), title...)
	b = binary.LittleEndian.AppendUint32(b, h.salt)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.snapshot))
	return binary.LittleEndian.AppendUint32(b, checksum(0, b))
}

func readHead(b []byte) (head, error) {
	if !bytes.HasPrefix(b, []byte(title)) {
		return head{}, errors.New("the file is not a log of allocations")
	}
	if len(b) < headSize || checksum(0, b[:headSize-4]) != binary.LittleEndian.Uint32(b[headSize-4:]) {
		return head{}, errors.New("the header of the file is damaged")
	}
	b = b[len(title):]
	h := head{salt: binary.LittleEndian.Uint32(b), snapshot: int64(binary.LittleEndian.Uint64(b[4:]))}
	return h, nil
}

var errShort = errors.New("record ends too early")

// flags of a change.
const (
	flagDeleted = 1 << iota
	flagBound
)

// pieces divides changes into frames, each of about the length full. With keepCommits,
// changes that were committed together stay in one frame.
func pieces(changes []allocator.Event, full int, keepCommits bool) iter.Seq[[]allocator.Event] {
	return func(yield func([]allocator.Event) bool) {
		for first := 0; first < len(changes); {
			end, size := first+1, sizeOf(changes[first].Claim)
			for end < len(changes) && (size < full || keepCommits && isSameCommit(changes[end-1], changes[end])) {
				size += sizeOf(changes[end].Claim)
				end++
			}
			if !yield(changes[first:end]) {
				return
			}
			first = end
		}
	}
}

func isSameCommit(a, b allocator.Event) bool { return a.Claim.Version == b.Claim.Version }

// appendFrame appends a frame with changes.
func (h head) appendFrame(b []byte, changes []allocator.Event) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHead)...)
	for _, e := range changes {
		b = appendChange(b, e)
	}
	h.seal(b[start:])
	return b
}

// seal writes the head of a frame whose body is complete.
func (h head) seal(frame []byte) {
	body := frame[frameHead:]
	binary.LittleEndian.PutUint32(frame, mark)
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(frame[8:], checksum(h.salt, body))
}

func checksum(salt uint32, body []byte) uint32 {
	return crc32.Update(salt, crc32.MakeTable(crc32.Castagnoli), body)
}

// sizeOf is an upper bound of the length of a claim in a frame.
func sizeOf(c allocator.Claim) int { return len(c.Owner) + 80 }

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
	b = append(binary.AppendUvarint(b, uint64(len(c.Owner))), c.Owner...)
	b = binary.LittleEndian.AppendUint64(b, c.Token)
	b = appendTime(b, c.Since)
	if !c.IsBound() {
		b = appendTime(b, c.Expires)
	}
	return b
}

// appendTime appends seconds and nanoseconds: one number would hold only times within
// a few centuries.
func appendTime(b []byte, t time.Time) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, t.Unix()), uint64(t.Nanosecond()))
}

// appendKey appends the kind of a key and its 4, 16 or 2 bytes.
func appendKey(b []byte, k allocator.Key) []byte {
	b = append(b, byte(k.Kind()))
	if k.Kind() == allocator.Port {
		return binary.BigEndian.AppendUint16(b, k.Port())
	}
	return append(b, k.Addr().AsSlice()...)
}

// readFrame returns the body and the length of the frame at the beginning of b. The length
// is 0 if there is no complete and valid frame.
func (h head) readFrame(b []byte) (body []byte, length int) {
	if len(b) < frameHead || binary.LittleEndian.Uint32(b) != mark {
		return nil, 0
	}
	size := binary.LittleEndian.Uint32(b[4:])
	if size > maxFrame || int(size) > len(b)-frameHead {
		return nil, 0
	}
	body = b[frameHead : frameHead+int(size)]
	if checksum(h.salt, body) != binary.LittleEndian.Uint32(b[8:]) {
		return nil, 0
	}
	return body, frameHead + int(size)
}

// hasFrame reports whether a valid frame begins anywhere in b.
func (h head) hasFrame(b []byte) bool {
	var sign [4]byte
	binary.LittleEndian.PutUint32(sign[:], mark)
	for {
		at := bytes.Index(b, sign[:])
		if at < 0 {
			return false
		}
		if _, length := h.readFrame(b[at:]); length > 0 {
			return true
		}
		b = b[at+1:]
	}
}

// reader parses a body. After the first error it gives zero values.
type reader struct {
	b   []byte
	err error
}

// readChanges returns the changes of a frame.
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
	e.Claim.Owner = allocator.Owner(r.take(r.uvarint()))
	if token := r.take(8); r.err == nil {
		e.Claim.Token = binary.LittleEndian.Uint64(token)
	}
	e.Claim.Since = r.time()
	if flags[0]&flagBound == 0 {
		e.Claim.Expires = r.time()
	}
	if e.Claim.Version == 0 || e.Claim.Owner == "" {
		r.fail(fmt.Errorf("claim of %v without version or owner", e.Claim.Key))
	}
	return e
}

func (r *reader) key() allocator.Key {
	kind := r.take(1)
	if r.err != nil {
		return allocator.Key{}
	}
	lengths := [256]uint8{allocator.IPv4: 4, allocator.IPv6: 16, allocator.Port: 2}
	b := r.take(uint64(lengths[kind[0]]))
	var k allocator.Key
	if addr, ok := netip.AddrFromSlice(b); ok {
		k = allocator.AddrKey(addr)
	} else if len(b) == 2 {
		k = allocator.PortKey(binary.BigEndian.Uint16(b))
	}
	if k.Kind() != allocator.Kind(kind[0]) || k == (allocator.Key{}) {
		r.fail(fmt.Errorf("invalid key of kind %d", kind[0]))
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

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// time reads what appendTime has written, also of the zero time.
func (r *reader) time() time.Time {
	seconds, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return time.Time{}
	}
	r.b = r.b[n:]
	nanoseconds := r.uvarint()
	if nanoseconds >= uint64(time.Second) {
		r.fail(fmt.Errorf("a time with %d nanoseconds", nanoseconds))
		return time.Time{}
	}
	return time.Unix(seconds, int64(nanoseconds)).UTC()
}
