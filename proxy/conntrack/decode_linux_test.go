package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attribute returns a netlink attribute.
func attribute(kind uint16, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// direction returns the tuple of one direction, with the attributes of its protocol.
func direction(kind uint16, src, dst byte, proto ...[]byte) []byte {
	ip := join(attribute(nl.CTA_IP_V4_SRC, 192, 0, 2, src), attribute(nl.CTA_IP_V4_DST, 192, 0, 2, dst))
	return attribute(kind, join(attribute(nl.CTA_TUPLE_IP, ip...), attribute(nl.CTA_TUPLE_PROTO, join(proto...)...))...)
}

func TestDecodeFlow(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	const icmpType, icmpCode = 5, 6
	number := func(n byte) []byte { return attribute(nl.CTA_PROTO_NUM, n) }
	ports := func(src, dst byte) []byte {
		return join(attribute(nl.CTA_PROTO_SRC_PORT, 0, src), attribute(nl.CTA_PROTO_DST_PORT, 0, dst))
	}
	at := func(host, port byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), uint16(port))
	}
	inZone := func(direction []byte) []byte {
		return attribute(binary.NativeEndian.Uint16(direction[2:]), join(direction[unix.SizeofNlAttr:], attribute(attrTupleZone, 0, 5))...)
	}
	header := make([]byte, nfgenSize)
	for name, tc := range map[string]struct {
		msg         []byte
		want        flow
		isElsewhere bool // in another zone
	}{
		"TCP": {
			join(header, direction(nl.CTA_TUPLE_ORIG, 1, 2, number(6), ports(10, 20)), direction(nl.CTA_TUPLE_REPLY, 3, 1, number(6), ports(30, 10))),
			flow{proto: protoTCP, source: at(1, 10), dest: at(2, 20), server: at(3, 30)}, false,
		},
		"ICMP, which has no ports": {
			join(header, direction(nl.CTA_TUPLE_ORIG, 1, 2, number(1), attribute(icmpType, 17), attribute(icmpCode, 17)), direction(nl.CTA_TUPLE_REPLY, 2, 1, number(1), attribute(icmpType, 6))),
			flow{proto: 1, source: at(1, 0), dest: at(2, 0), server: at(2, 0)}, false,
		},
		"empty attribute, another zone": {
			join(header, attribute(99), attribute(nl.CTA_ZONE, 0, 5), direction(nl.CTA_TUPLE_ORIG, 1, 2, number(17), ports(10, 20)), direction(nl.CTA_TUPLE_REPLY, 2, 1, number(17), ports(20, 10))),
			flow{proto: protoUDP, source: at(1, 10), dest: at(2, 20), server: at(2, 20)}, true,
		},
		"another zone, at the end": {
			join(header, direction(nl.CTA_TUPLE_ORIG, 1, 2, number(17), ports(10, 20)), direction(nl.CTA_TUPLE_REPLY, 2, 1, number(17), ports(20, 10)), attribute(nl.CTA_ZONE)),
			flow{proto: protoUDP, source: at(1, 10), dest: at(2, 20), server: at(2, 20)}, true,
		},
		"another zone, for its direction": {
			join(header, inZone(direction(nl.CTA_TUPLE_ORIG, 1, 2, number(17), ports(10, 20))), direction(nl.CTA_TUPLE_REPLY, 2, 1, number(17), ports(20, 10))),
			flow{proto: protoUDP, source: at(1, 10), dest: at(2, 20), server: at(2, 20)}, true,
		},
		"another zone, for its replies": {
			join(header, direction(nl.CTA_TUPLE_ORIG, 1, 2, number(17), ports(10, 20)), inZone(direction(nl.CTA_TUPLE_REPLY, 2, 1, number(17), ports(20, 10)))),
			flow{proto: protoUDP, source: at(1, 10), dest: at(2, 20), server: at(2, 20)}, true,
		},
		"attributes that are unknown, or have another length": {
			join(header,
				direction(nl.CTA_TUPLE_ORIG, 1, 2, number(6), ports(10, 20), attribute(99, 1, 2), attribute(nl.CTA_PROTO_NUM), attribute(nl.CTA_PROTO_SRC_PORT, 1), attribute(nl.CTA_PROTO_DST_PORT, 1, 2, 3)),
				direction(nl.CTA_TUPLE_REPLY, 3, 1, number(6), ports(30, 10), attribute(nl.CTA_PROTO_SRC_PORT), attribute(nl.CTA_PROTO_DST_PORT))),
			flow{proto: protoTCP, source: at(1, 10), dest: at(2, 20), server: at(3, 30)}, false,
		},
	} {
		got, inDefaultZone, err := decodeFlow(tc.msg)
		isSame := got.proto == tc.want.proto && got.source == tc.want.source && got.dest == tc.want.dest && got.server == tc.want.server
		if err != nil || !isSame || inDefaultZone == tc.isElsewhere {
			t.Errorf("%s: got %+v, in the default zone %v, error %v; want %+v, %v and none", name, got, inDefaultZone, err, tc.want, !tc.isElsewhere)
		}
	}
	sent, replied := direction(nl.CTA_TUPLE_ORIG, 1, 2, number(17), ports(10, 20)), direction(nl.CTA_TUPLE_REPLY, 2, 1, number(17), ports(20, 10))
	whole := join(header, sent, replied)
	long := []byte{200, 0, 1, 0, 0, 0, 0, 0} // longer than its parent, and shorter than the message
	around := make([]byte, 200)
	inTuple := func(kind uint16, part ...byte) []byte {
		return attribute(nl.CTA_TUPLE_ORIG, attribute(kind, part...)...)
	}
	for name, msg := range map[string][]byte{
		"no destination":       join(header, replied),
		"too long behind":      join(whole, long[:4]),
		"too long in a tuple":  join(header, attribute(nl.CTA_TUPLE_ORIG, long...), replied, attribute(99, around...)),
		"too long in a reply":  join(header, sent, attribute(nl.CTA_TUPLE_REPLY, long...), attribute(99, around...)),
		"too long in address":  join(header, inTuple(nl.CTA_TUPLE_IP, long...), replied, attribute(99, around...)),
		"an address too long":  join(header, inTuple(nl.CTA_TUPLE_IP, attribute(nl.CTA_IP_V4_DST, 1, 2, 3, 4, 5)...), replied),
		"nothing":              nil,
		"less than a header":   header[:3],
		"no addresses":         header,
		"no reply":             join(header, direction(nl.CTA_TUPLE_ORIG, 1, 2, number(17), ports(10, 20))),
		"attribute too long":   join(header, []byte{9, 0, 1, 0, 0, 0, 0, 0}),
		"attribute too short":  join(header, []byte{3, 0, 1, 0, 0, 0, 0, 0}),
		"address of two bytes": join(header, attribute(nl.CTA_TUPLE_ORIG, attribute(nl.CTA_TUPLE_IP, attribute(nl.CTA_IP_V4_SRC, 1, 2)...)...)),
	} {
		if got, _, err := decodeFlow(msg); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %+v and error %v, want %v", name, got, err, errMalformed)
		}
	}
}

func TestDumpError(t *testing.T) {
	t.Parallel()
	for i, tc := range []struct{ err, broken, want error }{
		{nil, nil, nil},
		{nil, errMalformed, errMalformed},
		{unix.EPERM, nil, unix.EPERM},
		{fmt.Errorf("dump: %w", nl.ErrDumpInterrupted), nil, errInterrupted},
		{nl.ErrDumpInterrupted, errMalformed, errInterrupted}, // it is repeated
	} {
		if got := dumpError(tc.err, tc.broken); !errors.Is(got, tc.want) {
			t.Errorf("case %d: got error %v, want %v", i, got, tc.want)
		}
	}
}

func TestRemoveError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ err, want error }{
		{nil, nil}, {unix.ENOENT, nil}, {unix.EBUSY, errOffloaded}, {unix.EPERM, unix.EPERM},
	} {
		if got := removeError(tc.err); !errors.Is(got, tc.want) || (got == nil) != (tc.want == nil) {
			t.Errorf("%v: got error %v, want %v", tc.err, got, tc.want)
		}
	}
}

// FuzzDecodeFlow checks that no message makes decodeFlow panic or return half a flow.
func FuzzDecodeFlow(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 128})
	f.Add([]byte{2, 0, 0, 0, 20, 0, 1, 128, 16, 0, 1, 128, 8, 0, 1, 0, 1, 2, 3, 4, 3, 0, 2, 0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		fl, _, err := decodeFlow(msg)
		if err == nil && (!fl.dest.IsValid() || !fl.server.IsValid()) {
			t.Errorf("got flow %+v, want a destination and a server", fl)
		}
		if err != nil && !errors.Is(err, errMalformed) {
			t.Errorf("got error %v, want %v", err, errMalformed)
		}
	})
}
