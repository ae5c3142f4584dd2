package rangemap

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Map is the content of a RangeAllocation: the range, as a prefix or as ports, and the
// taken keys as bits.
type Map struct {
	// Range is the range, as a prefix or as ports.
	Range string
	// Data has a bit for each key that is taken.
	Data []byte
}

// ErrMalformed says that the bytes are not a RangeAllocation.
var ErrMalformed = errors.New("malformed RangeAllocation")

const (
	kind       = "RangeAllocation"
	apiVersion = "v1"
	// magic begins every object that the API server stores as protocol buffers.
	magic = "k8s\x00"
)

// Numbers of the protocol buffer fields. The types of the Kubernetes API, which have them all,
// would add 11 MB to a program.
const (
	fieldTypeMeta, fieldRaw    = 1, 2
	fieldAPIVersion, fieldKind = 1, 2
	fieldRange, fieldData      = 2, 3
)

// Unmarshal reads a RangeAllocation from the bytes that etcd has under its key, which
// are protocol buffers. It ignores unknown fields.
func Unmarshal(object []byte) (Map, error) {
	raw, isObject := bytes.CutPrefix(object, []byte(magic))
	if !isObject {
		return Map{}, fmt.Errorf("%w: it does not begin as objects of the API server do", ErrMalformed)
	}
	envelope, err := fields(raw)
	if err != nil {
		return Map{}, err
	}
	meta, err := fields(envelope[fieldTypeMeta])
	if err != nil {
		return Map{}, err
	}
	if v, k := string(meta[fieldAPIVersion]), string(meta[fieldKind]); v != apiVersion || k != kind {
		return Map{}, fmt.Errorf("%w: it is a %s %s", ErrMalformed, v, k)
	}
	body, err := fields(envelope[fieldRaw])
	if err != nil {
		return Map{}, err
	}
	return Map{Range: string(body[fieldRange]), Data: bytes.Clone(body[fieldData])}, nil
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

// fields returns the fields of a message that hold bytes; the last one of a number
// counts.
func fields(b []byte) (map[protowire.Number][]byte, error) {
	all := map[protowire.Number][]byte{}
	for len(b) > 0 {
		number, kind, length := protowire.ConsumeField(b)
		if length < 0 {
			return nil, fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(length))
		}
		if kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			all[number], _ = protowire.ConsumeBytes(b[tag:])
		}
		b = b[length:]
	}
	return all, nil
}

func appendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}
