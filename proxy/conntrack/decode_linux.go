package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var errMalformed = errors.New("malformed conntrack message")

// nfgenSize is the size of the header before the attributes.
const nfgenSize = 4

// attributes calls f for each attribute in b.
func attributes(b []byte, f func(kind uint16, data []byte) error) error {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return errMalformed
		}
		kind := binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK
		if err := f(kind, b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}

// decodeFlow reads one entry. It copies what it keeps.
func decodeFlow(msg []byte) (f flow, inDefaultZone bool, err error) {
	if len(msg) < nfgenSize {
		return flow{}, false, errMalformed
	}
	inDefaultZone = true
	err = attributes(msg[nfgenSize:], func(kind uint16, data []byte) error {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			t, err := decodeTuple(data)
			f.proto, f.source, f.dest = t.proto, t.source, t.dest
			inDefaultZone = inDefaultZone && !t.inZone
			f.tuple = append([]byte(nil), data...)
			return err
		case nl.CTA_TUPLE_REPLY:
			t, err := decodeTuple(data)
			f.server = t.source
			inDefaultZone = inDefaultZone && !t.inZone
			return err
		case nl.CTA_ID:
			f.id = append([]byte(nil), data...)
		case nl.CTA_ZONE:
			inDefaultZone = false
		}
		return nil
	})
	if err == nil && (!f.dest.IsValid() || !f.server.IsValid()) {
		err = errMalformed
	}
	return f, inDefaultZone, err
}

type tuple struct {
	proto        protocol
	source, dest netip.AddrPort
	// inZone says that this direction has a zone of its own.
	inZone bool
}

// attrTupleZone is the kernel's CTA_TUPLE_ZONE.
const attrTupleZone = 3

func decodeTuple(b []byte) (t tuple, err error) {
	err = attributes(b, func(kind uint16, data []byte) error {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return attributes(data, t.setAddress)
		case nl.CTA_TUPLE_PROTO:
			return attributes(data, t.setProtocol)
		case attrTupleZone:
			t.inZone = true
		}
		return nil
	})
	return t, err
}

func (t *tuple) setAddress(kind uint16, data []byte) error {
	a, ok := netip.AddrFromSlice(data)
	if !ok {
		return errMalformed
	}
	switch kind {
	case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
		t.source = netip.AddrPortFrom(a, t.source.Port())
	case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
		t.dest = netip.AddrPortFrom(a, t.dest.Port())
	}
	return nil
}

// setProtocol reads an attribute of the protocol; those other than number and ports are ignored.
func (t *tuple) setProtocol(kind uint16, data []byte) error {
	switch {
	case kind == nl.CTA_PROTO_NUM && len(data) == 1:
		t.proto = protocol(data[0])
	case kind == nl.CTA_PROTO_SRC_PORT && len(data) == 2:
		t.source = netip.AddrPortFrom(t.source.Addr(), binary.BigEndian.Uint16(data))
	case kind == nl.CTA_PROTO_DST_PORT && len(data) == 2:
		t.dest = netip.AddrPortFrom(t.dest.Addr(), binary.BigEndian.Uint16(data))
	}
	return nil
}
