package nfnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// script returns a connection to a fake kernel that has sent all its replies already: each
// is the result of one read. The sequence numbers of requests start at 1.
func script(t *testing.T, reads ...[]byte) *Conn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair: %v", err)
	}
	s, err := rawnetlink.WrapSocket(fds[0], 20*time.Millisecond)
	if err != nil {
		t.Fatalf("WrapSocket: %v", err)
	}
	c := &Conn{socket: s, max: 1 << 20}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), unix.Close(fds[1])); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for _, r := range reads {
		if _, err := unix.Write(fds[1], r); err != nil {
			t.Fatalf("write the script: %v", err)
		}
	}
	return c
}

// closedSocket returns a socket by which nothing can be sent.
func closedSocket(t *testing.T) *rawnetlink.Socket {
	t.Helper()
	s, err := rawnetlink.OpenSocket(unix.NETLINK_NETFILTER, rawnetlink.Buffers{}, answerTimeout)
	if err == nil {
		err = s.Close()
	}
	testenv.NoError(t, err)
	return s
}

// wire composes a message.
func wire(typ, flags uint16, seq uint32, payload ...[]byte) []byte {
	p := slices.Concat(payload...)
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(p)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return rawnetlink.Pad(append(append(b, 0, 0, 0, 0), p...))
}

// code encodes an errno in a reply.
func code(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }

// answer composes the kernel's reply to message seq.
func answer(seq uint32, e unix.Errno, tlvs ...[]byte) []byte {
	flags := uint16(unix.NLM_F_CAPPED)
	if len(tlvs) > 0 {
		flags |= unix.NLM_F_ACK_TLVS
	}
	return wire(unix.NLMSG_ERROR, flags, seq, code(e), make([]byte, unix.NLMSG_HDRLEN), slices.Concat(tlvs...))
}

// listed composes the message for a table in a dump.
func listed(seq uint32, flags uint16, name string) []byte {
	return wire(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_MULTI|flags, seq,
		[]byte{byte(IPv4), 0, 0, 0}, rawnetlink.AppendString(nil, unix.NFTA_TABLE_NAME, name))
}

func done(seq uint32, flags uint16, e unix.Errno) []byte {
	return wire(unix.NLMSG_DONE, unix.NLM_F_MULTI|flags, seq, code(e))
}

func TestAcknowledgement(t *testing.T) {
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	text := rawnetlink.AppendString(nil, unix.NLMSGERR_ATTR_MSG, "not today")
	tests := []struct {
		name  string
		reads [][]byte
		want  error
	}{
		{name: "committed", reads: [][]byte{answer(3, 0)}},
		{name: "after replies to other requests", reads: [][]byte{answer(0, unix.EINVAL), slices.Concat(answer(99, unix.EBUSY), answer(3, 0))}},
		{name: "after messages of other kinds", reads: [][]byte{listed(3, 0, "x"), done(2, 0, 0), answer(3, 0)}},
		{name: "after a malformed reply", reads: [][]byte{wire(unix.NLMSG_ERROR, 0, 3, []byte{1}), {1, 2, 3}, answer(3, 0)}},
		{
			name: "refused at the commit", reads: [][]byte{answer(1, unix.EMLINK, text), answer(3, 0)},
			want: &Error{Errno: unix.EMLINK, Op: "commit", Detail: "not today"},
		},
		{
			name: "refused in the middle", reads: [][]byte{slices.Concat(answer(3, unix.ENOENT), answer(3, 0))},
			want: &Error{Errno: unix.ENOENT, Op: "delete chain", Table: table, Object: "b"},
		},
		{
			name: "refused, not capped",
			reads: [][]byte{wire(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, 2, code(unix.EBUSY),
				wire(1, 0, 2, make([]byte, 8)), text)},
			want: &Error{Errno: unix.EBUSY, Op: "delete chain", Table: table, Object: "a", Detail: "not today"},
		},
		{name: "no reply", want: ErrUnknownOutcome},
		{name: "no reply to this request", reads: [][]byte{answer(7, 0)}, want: ErrUnknownOutcome},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := script(t, tt.reads...)
			var b Batch
			b.DelChain(table, "a")
			b.DelChain(table, "b")
			err := c.Commit(context.Background(), &b)
			var want, got *Error
			if !errors.As(tt.want, &want) {
				if !errors.Is(err, tt.want) {
					t.Errorf("Commit: got %v, want %v", err, tt.want)
				}
				return
			}
			if !errors.As(err, &got) {
				t.Fatalf("Commit: got %v, want %v", err, want)
			}
			testenv.Same(t, want, got, "error")
		})
	}
}

func TestDumpRestart(t *testing.T) {
	t.Parallel()
	const intr = unix.NLM_F_DUMP_INTR
	var always [][]byte
	for try := range uint32(maxTries) {
		always = append(always, slices.Concat(listed(try+1, 0, "a"), listed(try+1, intr, "b"), done(try+1, intr, 0)))
	}
	tooLong := wire(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_MULTI, 1,
		[]byte{byte(IPv4), 0, 0, 0}, rawnetlink.AppendString(nil, unix.NFTA_TABLE_NAME, "a"), rawnetlink.AppendHeader(nil, unix.NFTA_TABLE_FLAGS, 4))
	tests := []struct {
		name   string
		reads  [][]byte
		begun  int
		tables []string
		want   error
	}{
		{name: "complete", reads: [][]byte{listed(1, 0, "a"), listed(1, 0, "b"), done(1, 0, 0)}, begun: 1, tables: []string{"a", "b"}},
		{
			name:  "interrupted once",
			reads: [][]byte{listed(1, 0, "a"), listed(1, intr, "b"), done(1, 0, 0), listed(2, 0, "c"), done(2, 0, 0)},
			begun: 2, tables: []string{"c"},
		},
		{
			name:  "interrupted at its end",
			reads: [][]byte{listed(1, 0, "a"), done(1, intr, 0), listed(2, 0, "c"), done(2, 0, 0)},
			begun: 2, tables: []string{"c"},
		},
		{
			name:  "ended early by the kernel",
			reads: [][]byte{listed(1, 0, "a"), done(1, 0, unix.EINTR), listed(2, 0, "c"), done(2, 0, 0)},
			begun: 2, tables: []string{"c"},
		},
		{name: "interrupted each time", reads: always, begun: maxTries, tables: []string{"a", "b"}, want: ErrInterrupted},
		{name: "failed", reads: [][]byte{listed(1, 0, "a"), done(1, 0, unix.ENOMEM)}, begun: 1, tables: []string{"a"}, want: unix.ENOMEM},
		{name: "refused", reads: [][]byte{answer(1, unix.EPERM)}, begun: 1, want: unix.EPERM},
		{name: "cut off", reads: [][]byte{listed(1, 0, "a")[:24]}, begun: 1, want: rawnetlink.ErrMalformed},
		{name: "attribute too long", reads: [][]byte{tooLong}, begun: 1, want: rawnetlink.ErrMalformed},
		{name: "no reply", begun: 1, want: unix.EAGAIN},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := script(t, tt.reads...)
			begun := 0
			var tables []string
			err := c.Tables(context.Background(), IPv4, Visitor[TableInfo]{
				Begin: func() { begun++; tables = nil },
				Each:  func(i *TableInfo) error { tables = append(tables, i.Name); return nil },
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("Tables: got error %v, want %v", err, tt.want)
			}
			testenv.Same(t, tt.begun, begun, "calls of Begin")
			testenv.Same(t, tt.tables, tables, "tables of the last try")
		})
	}
}

// If the end of a dump is lost, the next call waits for it once and then continues.
func TestDumpWithoutEnd(t *testing.T) {
	t.Parallel()
	c := script(t, listed(1, 0, "a"))
	err := c.Tables(context.Background(), IPv4, Visitor[TableInfo]{Each: func(*TableInfo) error { return nil }})
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("Tables: got %v, want EAGAIN", err)
	}
	if err := c.skipUnread(context.Background()); err != nil {
		t.Fatalf("skipUnread: got %v, want nil", err)
	}
	if c.unread != 0 {
		t.Errorf("dump that the connection waits for: got %d, want none", c.unread)
	}
}

// A visitor can make a dump start again.
func TestDumpRestartedByVisitor(t *testing.T) {
	t.Parallel()
	reads := [][]byte{listed(1, 0, "a"), listed(1, 0, "a"), listed(1, 0, "b"), done(1, 0, 0), listed(2, 0, "a"), done(2, 0, 0)}
	c := script(t, reads...)
	var seen []string
	err := c.Tables(context.Background(), IPv4, Visitor[TableInfo]{
		Begin: func() { seen = nil },
		Each: func(i *TableInfo) error {
			if slices.Contains(seen, i.Name) {
				return ErrInterrupted
			}
			seen = append(seen, i.Name)
			return nil
		},
	})
	if err != nil || !slices.Equal(seen, []string{"a"}) {
		t.Errorf("Tables: got %v, %v, want [a], nil", seen, err)
	}
}

// A dump with messages of different generations counts as interrupted: the kernel does not
// flag all interrupted dumps.
func TestDumpOfTwoGenerations(t *testing.T) {
	t.Parallel()
	at := func(generation byte, seq uint32, name string) []byte {
		m := listed(seq, 0, name)
		m[unix.NLMSG_HDRLEN+3] = generation
		return m
	}
	c := script(t, at(1, 1, "a"), at(2, 1, "b"), done(1, 0, 0), at(2, 2, "b"), at(2, 2, "c"), done(2, 0, 0))
	var tables []TableInfo
	err := c.Tables(context.Background(), IPv4, Collect(&tables))
	if diff := cmp.Diff([]TableInfo{{Name: "b"}, {Name: "c"}}, tables); err != nil || diff != "" {
		t.Errorf("Tables: error %v, (-want +got):\n%s", err, diff)
	}
}
