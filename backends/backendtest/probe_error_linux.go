package backendtest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// verdictOf returns the reply for an error of a socket, if no ICMP message is known to be
// its cause.
func verdictOf(err error) reply {
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return reply{outcome: reset}
	}
	return reply{outcome: failed, err: err}
}

// icmpError removes an ICMP error from the error queue of a socket, if there is one.
func (f *flow) icmpError() (reply, bool) {
	packet, control := make([]byte, 128), make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(f.fd, packet, control, unix.MSG_ERRQUEUE)
	if err != nil {
		return reply{}, false // There is none.
	}
	e, err := extendedError(control[:n])
	switch {
	case err != nil:
		return reply{outcome: failed, err: err}, true
	case f.isPortUnreachable(e):
		return reply{outcome: refused}, true
	}
	return reply{
		outcome: failed,
		err:     fmt.Errorf("ICMP type %d, code %d (origin %d): %w", e.Type, e.Code, e.Origin, unix.Errno(e.Errno)),
	}, true
}

func (f *flow) isPortUnreachable(e *unix.SockExtendedErr) bool {
	if f.is4 {
		return e.Origin == unix.SO_EE_ORIGIN_ICMP && e.Type == 3 && e.Code == 3
	}
	return e.Origin == unix.SO_EE_ORIGIN_ICMP6 && e.Type == 1 && e.Code == 4
}

// extendedErrorSize is the size of the kernel's struct sock_extended_err.
const extendedErrorSize = 16

// extendedError finds the error among the control messages that came with it.
func extendedError(control []byte) (*unix.SockExtendedErr, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("control messages of an error: %w", err)
	}
	for _, m := range messages {
		is4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
		is6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (is4 || is6) && len(m.Data) >= extendedErrorSize {
			return decodeError(m.Data), nil
		}
	}
	return nil, errors.New("an error without a description")
}

func decodeError(data []byte) *unix.SockExtendedErr {
	return &unix.SockExtendedErr{
		Errno: binary.NativeEndian.Uint32(data), Origin: data[4], Type: data[5], Code: data[6],
	}
}
