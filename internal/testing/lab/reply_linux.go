package lab

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Outcome is what happened to a packet.
type Outcome int

const (
	// Silence is no answer within the patience of the flow.
	Silence Outcome = iota
	// Answered is an answer by a server, or for ICMP by the host with the address.
	Answered
	// Refused is a refusal with the ICMP message that the port is unreachable, as of
	// Services without endpoints. A UDP port without socket is refused in
	// the same way.
	Refused
	// Reset is a refusal by TCP, as of a host without listener.
	Reset
	// Failed is any other outcome.
	Failed
)

// Reply is the result of a question.
type Reply struct {
	Outcome Outcome
	// Answer is the answer of a server. For ICMP it has no name.
	Answer
	// Err says more about a failure.
	Err error
}

// String returns a text that is equal for all replies with the same outcome: it has no ports.
func (r Reply) String() string {
	switch r.Outcome {
	case Silence:
		return "silence"
	case Refused:
		return "refused"
	case Reset:
		return "reset"
	case Failed:
		return fmt.Sprintf("failed: %v", r.Err)
	case Answered:
	}
	if r.Name == "" {
		return "answered"
	}
	return fmt.Sprintf("%s sees %v", r.Name, r.Client.Addr())
}

// verdictOf returns the reply for an error of a socket, if no ICMP message is known to be
// its cause.
func verdictOf(err error) Reply {
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return Reply{Outcome: Reset, Err: err}
	}
	return Reply{Outcome: Failed, Err: err}
}

// icmpError removes an ICMP error from the error queue of a socket, if there is one.
func (f *Flow) icmpError() (Reply, bool) {
	packet, control := make([]byte, 128), make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(f.fd, packet, control, unix.MSG_ERRQUEUE)
	if err != nil {
		return Reply{}, false // There is none.
	}
	e, err := extendedError(control[:n])
	switch {
	case err != nil:
		return Reply{Outcome: Failed, Err: err}, true
	case f.isPortUnreachable(e):
		return Reply{Outcome: Refused, Err: unix.Errno(e.Errno)}, true
	}
	return Reply{
		Outcome: Failed,
		Err:     fmt.Errorf("ICMP type %d, code %d (origin %d): %w", e.Type, e.Code, e.Origin, unix.Errno(e.Errno)),
	}, true
}

func (f *Flow) isPortUnreachable(e *unix.SockExtendedErr) bool {
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
