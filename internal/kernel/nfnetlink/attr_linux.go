package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

const (
	// nfgenLen is the length of struct nfgenmsg, which follows the netlink
	// header in every message of this subsystem.
	nfgenLen  = 4
	headerLen = unix.NLMSG_HDRLEN + nfgenLen
	attrLen   = unix.NLA_HDRLEN
	nested    = unix.NLA_F_NESTED
)

type (
	attrs    = rawnetlink.Attrs
	message  = rawnetlink.Message
	messages = rawnetlink.Messages
	outcome  = rawnetlink.Outcome
)

// appendRequest appends the headers of a message of this subsystem, without length and
// sequence number.
func appendRequest(b []byte, typ, flags uint16, fam Family) []byte {
	b = binary.NativeEndian.AppendUint32(b, headerLen)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0, byte(fam), unix.NFNETLINK_V0, 0, 0)
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(rawnetlink.AppendHeader(b, typ, 4), v)
}

func appendUint64(b []byte, typ uint16, v uint64) []byte {
	return binary.BigEndian.AppendUint64(rawnetlink.AppendHeader(b, typ, 8), v)
}

// generationOf returns the low bits of the generation of the ruleset from which the kernel
// made a message of a dump.
func generationOf(m message) uint16 {
	if len(m.Payload) < nfgenLen {
		return 0
	}
	return binary.BigEndian.Uint16(m.Payload[2:])
}

// attributesOf returns the attributes after the nfgenmsg of a message of nf_tables.
func attributesOf(m message) attrs {
	if len(m.Payload) < nfgenLen {
		return nil
	}
	return m.Payload[nfgenLen:]
}
