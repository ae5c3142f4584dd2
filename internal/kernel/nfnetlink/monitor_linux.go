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
// that they cause no wake-up. A message stays in the socket until [Monitor.Begin]; if the
// kernel drops one, it sets an error of the socket, which counts as noticed.
//
// Wait may be called at any time, all other methods must not be called concurrently.
type Monitor struct {
	conn *Conn
	file *os.File
	raw  syscall.RawConn
	// listening is true while the socket is in the multicast group of nf_tables.
	listening bool
	// missed is true if another connection may have committed while it was not.
	missed atomic.Bool
}

// bulk is the size in bytes from which the monitor does not listen during a transaction of its connection.
// Otherwise the kernel would hold a message of 4 KiB for each object until the end of the
// transaction, which would then take 1.5 times as long.
const bulk = 64 << 10

// Monitor makes the monitor of a connection, which watches tables in the network namespace of the calling
// thread. That must be the namespace of the connection. The monitor notices nothing before [Monitor.Begin].
func (c *Conn) Monitor(tables ...string) (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nfnetlink: monitor: %w", os.NewSyscallError("socket", err))
	}
	m := &Monitor{conn: c, file: os.NewFile(uintptr(fd), "nf_tables monitor")}
	if m.raw, err = m.file.SyscallConn(); err == nil {
		err = m.control(func(fd int) error { return c.prepare(fd, tables) })
	}
	if err != nil {
		return nil, errors.Join(err, m.file.Close())
	}
	c.monitor = m
	return m, nil
}

// prepare sets up the socket of a monitor. A socket that is not bound gets no messages.
func (c *Conn) prepare(fd int, tables []string) error {
	own, err := c.socket.Port()
	if err == nil {
		err = attachFilter(fd, own, tables)
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// attachFilter attaches the longest filter for which the kernel allocates memory: the
// sysctl net.core.optmem_max limits that, to 20 KiB by default before Linux 6.7.
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

// Close ends the monitor, and a Wait that is running.
func (m *Monitor) Close() error { return m.file.Close() }

// Begin clears what was noticed. Call it before reading the tables: the reading then
// includes each commit that is not noticed.
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

// Noticed reports whether another connection may have committed to the tables since Begin.
func (m *Monitor) Noticed() bool {
	is, err := m.isReadable()
	return err != nil || is || !m.listening || m.missed.Load()
}

// isReadable reports whether the socket has a message, or lost one. An error means that
// the monitor is closed.
func (m *Monitor) isReadable() (is bool, err error) {
	err = m.control(func(fd int) error {
		is = readable(fd)
		return nil
	})
	return is, err
}

// readable reports whether a socket has a message or an error.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		// A pending signal, such as those by which Go preempts goroutines, interrupts
		// poll even if it need not wait.
		if n, err := unix.Poll(p, 0); !errors.Is(err, unix.EINTR) {
			return err != nil || n > 0
		}
	}
}

// Wait returns nil as soon as Noticed is true because of a message or a missed commit, and
// an error when ctx ends or the monitor is closed. Only one Wait may run at a time.
func (m *Monitor) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, m.wake)
	defer stop()
	for {
		// wake sets a deadline in the past, which must not end the next read.
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
			return closed
		case is:
			return nil
		}
		// If the kernel lacks memory for a message, the socket reports an error but has
		// nothing to read. Go's poller then refuses to wait until the next message.
		if err := pause.For(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// pollInterval is the interval at which Wait polls a socket that Go's poller refuses.
const pollInterval = time.Second

// wake makes Wait check again. On a closed monitor it does nothing: Wait has ended.
func (m *Monitor) wake() { _ = m.file.SetReadDeadline(time.Now()) }

// Pause makes commits while the monitor does not listen, as many as commit returns if it
// succeeds, and none otherwise. If the generation of the ruleset then shows that others have
// committed to any table, that counts as noticed.
func (m *Monitor) Pause(ctx context.Context, commit func() (commits int, err error)) error {
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

// listen joins or leaves the multicast group.
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
	if err == nil {
		m.listening = yes
	}
	return err
}

func (m *Monitor) control(do func(fd int) error) error {
	var err error
	if failed := m.raw.Control(func(fd uintptr) { err = do(int(fd)) }); failed != nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("nfnetlink: monitor: %w", err)
	}
	return nil
}
