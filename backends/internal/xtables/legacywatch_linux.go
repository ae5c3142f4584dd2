package xtables

import (
	"context"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
)

// legacyWatch looks at the sizes of tables of the legacy flavour, which reports no changes. It
// notices each change of the number of rules of one of the kernel's own chains, of a table, or of
// their size in bytes. Resyncs find all other changes.
type legacyWatch struct {
	// exist returns the tables of a family that exist: the kernel makes a table that somebody
	// looks at.
	exist map[v1.IPFamily]func() ([]Table, error)
	// sockets are for the families that use the flavour.
	sockets map[v1.IPFamily]*os.File

	// mu is held during each own commit.
	mu sync.Mutex
	// seen are the tables after the last own commit, or before everything was read.
	seen    map[legacyTable]tableInfo
	foreign bool
}

type legacyTable struct {
	family v1.IPFamily
	table  Table
}

// tableInfo is the kernel's struct ipt_getinfo: the name, the valid hooks, and the offsets of the
// first and last rule of each hook; the count of rules, and their size in bytes.
type tableInfo struct {
	name  [32]byte
	other [13]uint32
}

// lookInterval is the time between two looks. A look takes some microseconds, however many rules
// there are.
const lookInterval = time.Second

// newLegacyWatch makes a watch in the network namespace of the calling thread.
func newLegacyWatch(exist map[v1.IPFamily]func() ([]Table, error)) (*legacyWatch, error) {
	w := &legacyWatch{exist: exist, sockets: map[v1.IPFamily]*os.File{}}
	for f := range exist {
		domain := unix.AF_INET
		if f == v1.IPv6Protocol {
			domain = unix.AF_INET6
		}
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			_ = w.Close() // nothing was written
			return nil, os.NewSyscallError("socket", err)
		}
		w.sockets[f] = os.NewFile(uintptr(fd), "tables of iptables")
	}
	return w, nil
}

// Close implements [io.Closer].
func (w *legacyWatch) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sockets {
		_ = s.Close() // nothing was written
	}
	w.sockets = nil
	return nil
}

func (w *legacyWatch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.foreign = w.look(), false
}

func (w *legacyWatch) commit(_ context.Context, _, _ int, run func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compare()
	err := run()
	w.seen = w.look()
	return err
}

// compare looks at the tables that were seen. It requires w.mu.
func (w *legacyWatch) compare() {
	for t, seen := range w.seen {
		now, ok := readInfo(w.sockets[t.family], t)
		w.foreign = w.foreign || !ok || now != seen
	}
}

// drifted is always true: only reading all rules shows whether each is as it was.
func (*legacyWatch) drifted() bool { return true }

func (w *legacyWatch) wait(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		w.mu.Lock()
		w.compare()
		foreign, closed := w.foreign, w.sockets == nil
		w.mu.Unlock()
		switch {
		case closed:
			return errClosed
		case foreign:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// look returns the tables that can be read. It requires w.mu.
func (w *legacyWatch) look() map[legacyTable]tableInfo {
	all := map[legacyTable]tableInfo{}
	for family, s := range w.sockets {
		tables, err := w.exist[family]()
		if err != nil {
			continue
		}
		for _, t := range tables {
			of := legacyTable{family, t}
			if info, ok := readInfo(s, of); ok {
				all[of] = info
			}
		}
	}
	return all
}

// readInfo reads the size of a table.
func readInfo(socket *os.File, of legacyTable) (info tableInfo, ok bool) {
	const getInfo = 64 // IPT_SO_GET_INFO and IP6T_SO_GET_INFO
	level := uintptr(unix.IPPROTO_IP)
	if of.family == v1.IPv6Protocol {
		level = unix.IPPROTO_IPV6
	}
	copy(info.name[:], of.table.String())
	raw, err := socket.SyscallConn()
	if err != nil {
		return info, false
	}
	size := uint32(unsafe.Sizeof(info))
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, level, getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	})
	return info, err == nil && errno == 0
}
