package legacytables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
)

// Socket reads the tables of a family in the network namespace in which it was opened.
type Socket struct {
	file  *os.File
	level uintptr
	rules layout
	// names is the file that lists the tables that exist, or nil if the kernel did not have the flavour.
	names *os.File
	// denied is why the file could not be opened, as in a user namespace.
	denied error
}

// Open opens a socket in the network namespace of the calling thread. It needs no privilege, but reading
// needs CAP_NET_ADMIN.
func Open(f v1.IPFamily) (*Socket, error) {
	domain, s := unix.AF_INET, &Socket{level: unix.IPPROTO_IP, rules: layout4()}
	if f == v1.IPv6Protocol {
		domain, s = unix.AF_INET6, &Socket{level: unix.IPPROTO_IPV6, rules: layout6()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s.file = os.NewFile(uintptr(fd), "tables of iptables")
	names := "/proc/thread-self/net/ip_tables_names"
	if f == v1.IPv6Protocol {
		names = "/proc/thread-self/net/ip6_tables_names"
	}
	if s.names, s.denied = os.Open(names); errors.Is(s.denied, fs.ErrNotExist) {
		s.denied = nil
	}
	return s, nil
}

// Close implements [io.Closer].
func (s *Socket) Close() error {
	err := s.file.Close()
	if s.names != nil {
		err = errors.Join(err, s.names.Close())
	}
	return err
}

// Sizes returns the tables of a family that exist in the network namespace of the calling thread.
func Sizes(f v1.IPFamily) (map[string]Info, error) {
	s, err := Open(f)
	if err != nil {
		return nil, err
	}
	defer s.Close() //nolint:errcheck // nothing was written
	names, err := s.Names()
	all := map[string]Info{}
	for _, name := range names {
		if info, err := s.Info(name); err == nil {
			all[name] = info
		}
	}
	return all, err
}

// Names returns the tables that exist: none if the kernel did not have the flavour when the socket was opened.
// The kernel makes a table that somebody reads.
func (s *Socket) Names() ([]string, error) {
	if s.names == nil {
		return nil, s.denied
	}
	names, err := io.ReadAll(io.NewSectionReader(s.names, 0, 1<<16))
	return strings.Fields(string(names)), err
}

// Info is the kernel's struct ipt_getinfo, which can be compared: the name; the hooks that the table has,
// and the offsets of the first rule and of the policy of each; the number of rules, and their size in bytes.
type Info struct {
	name  [32]byte
	other [13]uint32
}

func (i *Info) policies() []uint32 { return i.other[6:11] }
func (i *Info) size() uint32       { return i.other[12] }

// Options of getsockopt, for both families.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
)

// Info reads the sizes of a table.
func (s *Socket) Info(table string) (i Info, err error) {
	copy(i.name[:], table)
	err = s.get(getInfo, unsafe.Pointer(&i), unsafe.Sizeof(i))
	return i, err
}

// Rules reads the rules of all chains of a table.
func (s *Socket) Rules(table string) (all []Rule, err error) {
	const times = 3 // another program may change the table in between
	for range times {
		if all, err = s.entries(table); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return all, err
}

// entries fails with EAGAIN if the size of the table changes in between.
func (s *Socket) entries(table string) ([]Rule, error) {
	i, err := s.Info(table)
	if err != nil {
		return nil, err
	}
	const header = 40 // of struct ipt_get_entries: the name, the size, and padding
	all := make([]byte, header+int(i.size()))
	copy(all, i.name[:])
	binary.NativeEndian.PutUint32(all[len(i.name):], i.size())
	if err := s.get(getEntries, unsafe.Pointer(&all[0]), uintptr(len(all))); err != nil {
		return nil, err
	}
	return s.rules.read(all[header:], i.policies())
}

func (s *Socket) get(option uintptr, value unsafe.Pointer, size uintptr) error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	length := uint32(size)
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, s.level, option, uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	})
	if err == nil && errno != 0 {
		err = fmt.Errorf("table of iptables: %w", os.NewSyscallError("getsockopt", errno))
	}
	return err
}
