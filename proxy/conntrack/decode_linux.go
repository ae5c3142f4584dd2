package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

var errMalformed = errors.New("malformed conntrack message")

// nfgenSize is the size of the header before the attributes.
const nfgenSize = 4

// attrTupleZone is the kernel's CTA_TUPLE_ZONE.
const attrTupleZone = 3

// decodeFlow reads one entry. It copies what it keeps.
func decodeFlow(msg []byte) (f flow, inDefaultZone bool, err error) {
	if len(msg) < nfgenSize {
		return flow{}, false, errMalformed
	}
	all := rawnetlink.Attrs(msg[nfgenSize:])
	sent, replied := rawnetlink.Attrs(all.Find(nl.CTA_TUPLE_ORIG)), rawnetlink.Attrs(all.Find(nl.CTA_TUPLE_REPLY))
	f.proto, f.source, f.dest = decodeTuple(sent)
	_, f.server, _ = decodeTuple(replied)
	f.tuple, f.id = bytes.Clone(sent), bytes.Clone(all.Find(nl.CTA_ID))
	if all.Check() != nil || !f.dest.IsValid() || !f.server.IsValid() {
		return f, false, errMalformed
	}
	// A zone may be of one direction.
	return f, all.Find(nl.CTA_ZONE) == nil && sent.Find(attrTupleZone) == nil && replied.Find(attrTupleZone) == nil, nil
}

// decodeTuple reads one direction. Ports are 0 in protocols without ports.
func decodeTuple(tuple rawnetlink.Attrs) (proto protocol, source, dest netip.AddrPort) {
	addresses, numbers := rawnetlink.Attrs(tuple.Find(nl.CTA_TUPLE_IP)), rawnetlink.Attrs(tuple.Find(nl.CTA_TUPLE_PROTO))
	at := func(v4, v6, port uint16) netip.AddrPort {
		a, ok := netip.AddrFromSlice(addresses.Find(v4))
		if !ok {
			a, _ = netip.AddrFromSlice(addresses.Find(v6))
		}
		if v := numbers.Find(port); len(v) == 2 {
			return netip.AddrPortFrom(a, binary.BigEndian.Uint16(v))
		}
		return netip.AddrPortFrom(a, 0)
	}
	if v := numbers.Find(nl.CTA_PROTO_NUM); len(v) == 1 {
		proto = protocol(v[0])
	}
	return proto, at(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT), at(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
}
