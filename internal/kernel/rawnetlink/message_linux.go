package rawnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Message is one netlink message; Payload follows the netlink header.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	// Port identifies the socket whose request the message answers or is about; 0 is the
	// kernel.
	Port    uint32
	Payload []byte
}

// Messages is the result of one read from a netlink socket.
type Messages []byte

// Next removes the first message and returns it, as [Attrs.Next] does.
func (m *Messages) Next() (Message, bool) {
	b := *m
	if len(b) < unix.NLMSG_HDRLEN {
		return Message{}, false
	}
	n := binary.NativeEndian.Uint32(b)
	if n < unix.NLMSG_HDRLEN || uint64(n) > uint64(len(b)) {
		return Message{}, false
	}
	*m = b[min(Align(int(n)), len(b)):]
	return Message{
		Type:    binary.NativeEndian.Uint16(b[4:]),
		Flags:   binary.NativeEndian.Uint16(b[6:]),
		Seq:     binary.NativeEndian.Uint32(b[8:]),
		Port:    binary.NativeEndian.Uint32(b[12:]),
		Payload: b[unix.NLMSG_HDRLEN:n],
	}, true
}

// IsLast reports whether a message ends the answer to a request.
func (m Message) IsLast() bool { return m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR }

// Outcome is the content of a message that ends an answer: an error or an acknowledgement.
type Outcome struct {
	Errno  unix.Errno
	Detail string
	// Offset is the offset of the wrong attribute in the request; 0 is none.
	Offset uint32
}

// Outcome decodes NLMSG_ERROR, and NLMSG_DONE, which lacks the header of the request.
func (m Message) Outcome() (Outcome, error) {
	if len(m.Payload) < 4 {
		return Outcome{}, ErrMalformed
	}
	o := Outcome{Errno: unix.Errno(-int32(binary.NativeEndian.Uint32(m.Payload)))}
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return o, nil
	}
	skip := 4
	if m.Type == unix.NLMSG_ERROR {
		skip += unix.NLMSG_HDRLEN
		if m.Flags&unix.NLM_F_CAPPED == 0 && len(m.Payload) >= 8 {
			skip = 4 + Align(int(min(binary.NativeEndian.Uint32(m.Payload[4:]), MaxAttr)))
		}
	}
	a := Attrs(m.Payload[min(skip, len(m.Payload)):])
	o.Detail = a.Text(unix.NLMSGERR_ATTR_MSG)
	if v := a.Find(unix.NLMSGERR_ATTR_OFFS); len(v) >= 4 {
		o.Offset = binary.NativeEndian.Uint32(v)
	}
	return o, nil
}
