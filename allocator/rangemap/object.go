package rangemap

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// Map is the content of a RangeAllocation: the range, as a prefix or as ports, and the
// taken keys as bits.
type Map struct {
	// Range is the range, as a prefix or as ports.
	Range string `json:"range"`
	// Data has a bit for each key that is taken.
	Data []byte `json:"data"`
}

// ErrMalformed says that the bytes are not a RangeAllocation.
var ErrMalformed = errors.New("malformed RangeAllocation")

const (
	kind       = "RangeAllocation"
	apiVersion = "v1"
	// magic begins every object that the API server stores as protocol buffers.
	magic = "k8s\x00"
)

// Numbers of the protocol buffer fields, and the wire type of all of them.
const (
	fieldTypeMeta, fieldRaw    = 1, 2
	fieldAPIVersion, fieldKind = 1, 2
	fieldRange, fieldData      = 2, 3

	wireVarint, wire64, wireBytes, wire32 = 0, 1, 2, 5
)

// Unmarshal reads a RangeAllocation from the bytes that etcd has under its key, which
// are protocol buffers or JSON. It ignores unknown fields.
func Unmarshal(object []byte) (Map, error) {
	if raw, ok := bytes.CutPrefix(object, []byte(magic)); ok {
		return unmarshalProto(raw)
	}
	var o struct {
		Kind, APIVersion string
		Map
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return Map{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return o.Map, checkType(o.APIVersion, o.Kind)
}

// Marshal returns the object in the form in which the API server stores it.
func (m Map) Marshal() []byte {
	meta := appendField(nil, fieldAPIVersion, []byte(apiVersion))
	meta = appendField(meta, fieldKind, []byte(kind))
	body := appendField(nil, 1, nil) // no metadata
	body = appendField(body, fieldRange, []byte(m.Range))
	body = appendField(body, fieldData, m.Data)
	object := appendField([]byte(magic), fieldTypeMeta, meta)
	object = appendField(object, fieldRaw, body)
	object = appendField(object, 3, nil) // content encoding
	return appendField(object, 4, nil)   // content type
}

func checkType(gotVersion, gotKind string) error {
	if gotVersion != apiVersion || gotKind != kind {
		return fmt.Errorf("%w: it is a %s %s", ErrMalformed, gotVersion, gotKind)
	}
	return nil
}

func unmarshalProto(raw []byte) (Map, error) {
	envelope, err := fields(raw)
	if err != nil {
		return Map{}, err
	}
	meta, err := fields(envelope[fieldTypeMeta])
	if err != nil {
		return Map{}, err
	}
	if err := checkType(string(meta[fieldAPIVersion]), string(meta[fieldKind])); err != nil {
		return Map{}, err
	}
	body, err := fields(envelope[fieldRaw])
	if err != nil {
		return Map{}, err
	}
	return Map{Range: string(body[fieldRange]), Data: bytes.Clone(body[fieldData])}, nil
}

// fields returns the fields of a message that hold bytes; the last one of a number
// counts.
func fields(b []byte) (map[uint64][]byte, error) {
	all := map[uint64][]byte{}
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, fmt.Errorf("%w: cut off in a tag", ErrMalformed)
		}
		value, length, err := field(b[n:], tag&7)
		if err != nil {
			return nil, err
		}
		if tag&7 == wireBytes {
			all[tag>>3] = value
		}
		b = b[n+length:]
	}
	return all, nil
}

// field returns the value at the beginning of b, and its length with the prefix.
func field(b []byte, wire uint64) (value []byte, length int, err error) {
	v, n := binary.Uvarint(b)
	switch {
	case wire == wire64 && len(b) >= 8:
		return nil, 8, nil
	case wire == wire32 && len(b) >= 4:
		return nil, 4, nil
	case wire == wireVarint && n > 0:
		return nil, n, nil
	case wire == wireBytes && n > 0 && v <= uint64(len(b)-n):
		return b[n : n+int(v)], n + int(v), nil
	}
	return nil, 0, fmt.Errorf("%w: bad field of type %d", ErrMalformed, wire)
}

func appendField(b []byte, number uint64, value []byte) []byte {
	b = binary.AppendUvarint(b, number<<3|wireBytes)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}
