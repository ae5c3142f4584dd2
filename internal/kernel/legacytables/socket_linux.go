package legacytables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
)

// socket asks for the tables of a family in the network namespace in which it was opened.
type socket struct {
	*os.File
	level uintptr
	rules layout
}

// open opens a socket in the network namespace of the calling thread, and returns the names of the tables that
// exist there. The kernel makes a table that somebody reads.
func open(f v1.IPFamily) (s *socket, names []string, err error) {
	domain, list := unix.AF_INET, "/proc/thread-self/net/ip_tables_names"
	s = &socket{level: unix.IPPROTO_IP, rules: layout4()}
	if f == v1.IPv6Protocol {
		domain, list = unix.AF_INET6, "/proc/thread-self/net/ip6_tables_names"
		s = &socket{level: unix.IPPROTO_IPV6, rules: layout6()}
	}
	text, err := os.ReadFile(list)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the kernel lacks the flavour
		return nil, nil, err
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	s.File = os.NewFile(uintptr(fd), "tables of iptables")
	return s, strings.Fields(string(text)), nil
}

// Sizes returns the tables of a family that exist in the network namespace of the calling thread. It needs
// CAP_NET_ADMIN, as Rules does.
func Sizes(f v1.IPFamily) (map[string]Info, error) {
	s, names, err := open(f)
	if err != nil {
		return nil, err
	}
	defer s.Close() //nolint:errcheck // nothing was written
	all := map[string]Info{}
	for _, name := range names {
		if info, err := s.info(name); err == nil {
			all[name] = info
		}
	}
	return all, nil
}

// Rules returns the rules of all chains of a table, none if the table does not exist in the network
// namespace of the calling thread.
func Rules(f v1.IPFamily, table string) (all []Rule, err error) {
	s, names, err := open(f)
	if err != nil {
		return nil, err
	}
	defer s.Close() //nolint:errcheck // nothing was written
	if !slices.Contains(names, table) {
		return nil, nil
	}
	const times = 3 // another program may change the table in between
	for range times {
		if all, err = s.entries(table); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return all, err
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

func (s *socket) info(table string) (i Info, err error) {
	copy(i.name[:], table)
	err = s.get(getInfo, unsafe.Pointer(&i), unsafe.Sizeof(i))
	return i, err
}

// entries fails with EAGAIN if the size of the table changes in between.
func (s *socket) entries(table string) ([]Rule, error) {
	i, err := s.info(table)
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

func (s *socket) get(option uintptr, value unsafe.Pointer, size uintptr) error {
	raw, err := s.SyscallConn()
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
