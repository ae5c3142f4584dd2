package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/pause"
)

// Monitor notices commits to tables of certain names, in any family, that were not made
// through its connection. A socket filter drops the messages about all other commits, so
// that they cost no wake-up. A message stays in the socket until [Monitor.Begin]; if the
// kernel drops one, the socket's error says so, and counts as noticed.
//
// Wait may be called at any time, all other methods one at a time.
type Monitor struct {
	conn *Conn
	file *os.File
	raw  syscall.RawConn
	// listening says that the socket is in the group of nf_tables.
	listening bool
	// missed says that others may have committed while it was not.
	missed atomic.Bool
}

// bulk is the size in bytes from which the monitor leaves the group during a transaction.
// Otherwise the kernel would hold a message of 4 KiB for each object until the end of the
// transaction, and take half as long again.
const bulk = 64 << 10

// Monitor makes a monitor of tables in the network namespace of the calling thread,
// which must be that of the connection. It notices nothing before [Monitor.Begin].
func (c *Conn) Monitor(tables ...string) (*Monitor, error) {
	own, err := c.portID()
	if err != nil {
		return nil, fmt.Errorf("nfnetlink: monitor: %w", err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nfnetlink: monitor: %w", os.NewSyscallError("socket", err))
	}
	m := &Monitor{conn: c, file: os.NewFile(uintptr(fd), "nf_tables monitor")}
	if m.raw, err = m.file.SyscallConn(); err == nil {
		err = m.control(func(fd int) error { return prepare(fd, own, tables) })
	}
	if err != nil {
		return nil, errors.Join(err, m.file.Close())
	}
	return m, nil
}

// prepare sets up the socket of a monitor. One that is not bound gets no messages.
func prepare(fd int, own uint32, tables []string) error {
	if err := attachFilter(fd, own, tables); err != nil {
		return fmt.Errorf("nfnetlink: monitor: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("nfnetlink: monitor: %w", os.NewSyscallError("bind", err))
	}
	return nil
}

// attachFilter attaches the longest filter that there is memory for: the sysctl
// net.core.optmem_max bounds that, to 20 KiB by default before Linux 6.7.
func attachFilter(fd int, own uint32, tables []string) error {
	for size := unix.BPF_MAXINSNS; ; size -= size / 4 {
		filter, err := monitorFilter(own, tables, size)
		if err != nil {
			return err
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
		if err == nil || size < 4 || !errors.Is(err, unix.ENOMEM) {
			return os.NewSyscallError("setsockopt", err)
		}
	}
}

// portID gives the number by which the kernel names the sender of a transaction.
func (c *Conn) portID() (uint32, error) {
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	at, ok := name.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("socket name of type %T", name)
	}
	return at.Pid, nil
}

// Close ends the monitor, and a Wait that is under way.
func (m *Monitor) Close() error { return m.file.Close() }

// Begin forgets what was noticed. Call it before reading the tables: each commit is then
// either part of what is read, or noticed.
func (m *Monitor) Begin() error {
	if err := m.listen(true); err != nil {
		return err
	}
	m.missed.Store(false)
	return m.control(func(fd int) error {
		var buf [1]byte
		for range maxStale {
			_, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return nil
			case err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR):
				return os.NewSyscallError("recvfrom", err)
			}
		}
		return nil // messages arrive as fast as they are read: Noticed reports them
	})
}

// Noticed reports whether others may have committed to the tables since Begin.
func (m *Monitor) Noticed() bool {
	is, err := m.isReadable()
	return err != nil || is || !m.listening || m.missed.Load()
}

// isReadable reports whether there is a message, or one was lost. The error says that the
// monitor is closed.
func (m *Monitor) isReadable() (is bool, err error) {
	err = m.control(func(fd int) error {
		is = readable(fd)
		return nil
	})
	return is, err
}

// readable does so for the socket.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err != nil || n > 0
}

// Wait returns nil as soon as something is noticed, and an error when ctx ends or the
// monitor is closed. One Wait may be under way at a time.
func (m *Monitor) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, m.wake)
	defer stop()
	for {
		// A deadline that has passed is what wakes the read.
		if err := m.file.SetReadDeadline(time.Time{}); err != nil {
			return fmt.Errorf("nfnetlink: monitor: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if m.missed.Load() {
			return nil
		}
		err := m.raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
		if err == nil {
			return nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		is, closed := m.isReadable()
		switch {
		case closed != nil:
			return fmt.Errorf("nfnetlink: monitor: %w", closed)
		case is:
			return nil
		}
		// When the kernel lacks memory for a message, the socket reports an error but has
		// nothing to read. Go's poller then refuses to wait until the next message comes.
		if err := pause.For(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// pollInterval is how often Wait looks at a socket that Go's poller refuses.
const pollInterval = time.Second

// wake makes Wait look again. On a closed monitor it does nothing: Wait has ended.
func (m *Monitor) wake() { _ = m.file.SetReadDeadline(time.Now()) }

// Commit commits a batch through the connection. During a large one the monitor does not
// listen. If the generation of the ruleset then shows that others committed to any table,
// that counts as noticed.
func (m *Monitor) Commit(ctx context.Context, b *Batch) error {
	commit := func() error { return m.conn.Commit(ctx, b) }
	if b.Len() < bulk || !m.listening {
		return commit()
	}
	return m.apart(ctx, commit)
}

// apart makes a commit while the monitor does not listen.
func (m *Monitor) apart(ctx context.Context, commit func() error) error {
	before, err := m.conn.Generation(ctx)
	if err != nil {
		return err
	}
	if err := m.listen(false); err != nil {
		return err
	}
	committed := commit()
	err = m.listen(true)
	after := before
	if err == nil {
		after, err = m.conn.Generation(context.WithoutCancel(ctx))
	}
	if committed == nil {
		after--
	}
	if err != nil || after != before {
		m.missed.Store(true)
		m.wake()
	}
	return committed
}

// listen joins or leaves the group.
func (m *Monitor) listen(yes bool) error {
	if m.listening == yes {
		return nil
	}
	option := unix.NETLINK_DROP_MEMBERSHIP
	if yes {
		option = unix.NETLINK_ADD_MEMBERSHIP
	}
	err := m.control(func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES))
	})
	if err != nil {
		return fmt.Errorf("nfnetlink: monitor: %w", err)
	}
	m.listening = yes
	return nil
}

func (m *Monitor) control(do func(fd int) error) error {
	var err error
	if failed := m.raw.Control(func(fd uintptr) { err = do(int(fd)) }); failed != nil {
		return fmt.Errorf("nfnetlink: monitor: %w", failed)
	}
	return err
}
