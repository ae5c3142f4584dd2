package nfnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// ErrMissed reports that a monitor may not have got all messages.
var ErrMissed = errors.New("nfnetlink: messages about commits may be lost")

// monitored is the size in bytes of the receive buffer of a monitor whose messages are read.
// Without the privilege to set it, more messages are lost.
const monitored = 4 << 20

// longestMessage is longer than any packet of messages about a commit.
const longestMessage = 64 << 10

// Read reads the messages that have arrived, and calls each for those about the tables of the
// monitor, with the table and the lower 16 bits of the generation that the commit has made. It
// returns [ErrMissed] until the next Begin if messages may be lost.
func (m *Monitor) Read(each func(t Table, generation uint16)) error {
	if m.buf == nil {
		m.buf = make([]byte, longestMessage)
	}
	buf := m.buf
	for range maxStale {
		n, err := m.receive(buf)
		switch {
		case errors.Is(err, unix.EAGAIN) && m.listening && !m.missed.Load():
			return nil
		case errors.Is(err, unix.EAGAIN):
			return ErrMissed
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS) || err == nil && n > len(buf):
			m.missed.Store(true)
			continue
		case err != nil:
			return err
		}
		m.hand(buf[:n], each)
	}
	return ErrMissed
}

// receive reads a packet without waiting; n is its whole length.
func (m *Monitor) receive(buf []byte) (n int, err error) {
	failed := m.control(func(fd int) error {
		n, _, err = unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		return nil
	})
	if failed != nil {
		return 0, failed
	}
	return n, os.NewSyscallError("recvfrom", err)
}

// hand calls each for the messages of a packet. The filter passes whole packets, so that some
// messages may be about other tables.
func (m *Monitor) hand(packet rawnetlink.Messages, each func(Table, uint16)) {
	for msg, ok := packet.Next(); ok; msg, ok = packet.Next() {
		const header = 4 // family, version, generation
		if len(msg.Payload) < header || msg.Type&0xff == unix.NFT_MSG_NEWGEN {
			continue
		}
		t := Table{Family: Family(msg.Payload[0]), Name: rawnetlink.Attrs(msg.Payload[header:]).Text(unix.NFTA_TABLE_NAME)}
		if slices.Contains(m.tables, t.Name) {
			each(t, binary.BigEndian.Uint16(msg.Payload[2:]))
		}
	}
}

// Enlarge gives a monitor whose messages are read room for more of them.
func (m *Monitor) Enlarge() error {
	return m.control(func(fd int) error {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, monitored)
		if errors.Is(err, unix.EPERM) {
			return nil
		}
		return os.NewSyscallError("setsockopt", err)
	})
}

// Apart makes commits while the monitor does not listen, as many as commit returns if it
// succeeds, and none otherwise. If the generation of the ruleset then shows that others have
// committed to any table, that counts as noticed.
func (m *Monitor) Apart(ctx context.Context, commit func() (commits int, err error)) error {
	before, err := m.conn.Generation(ctx)
	if err != nil {
		return err
	}
	if err := m.listen(false); err != nil {
		return err
	}
	commits, committed := commit()
	err = m.listen(true)
	after := before
	if err == nil {
		after, err = m.conn.Generation(context.WithoutCancel(ctx))
	}
	if committed == nil {
		after -= uint32(commits)
	}
	if err != nil || after != before {
		m.missed.Store(true)
		m.wake()
	}
	return committed
}
