package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lookup decides, in the kernel, which socket gets what comes to this host: a small
// program looks the destination up before the kernel looks for a socket by itself.
// So one socket serves all frontends, and no program of the node that listens at
// every address gets what is sent to a Service.
//
// Everything in it ends with the process.
type lookup struct {
	frontends, owned, nodePorts, sockets, program, link int
	namespace                                           *os.File // that it is put into
}

// verdict is what the program makes of a frontend: a slot of a socket, or this.
const verdictRefuse = 99

// Slots of sockets: those of the door for everybody, those that take no notice, and
// those of the door for the node itself.
const (
	slotDoor, slotSink, slotNode = 0, 4, 8
	slots                        = 12
)

// slot gives the slot for a family and protocol.
func slot(first uint32, six bool, proto uint8) uint32 {
	if six {
		first += 2
	}
	if proto == protoUDP {
		first++
	}
	return first
}

const maxFrontends = 1 << 20

// newLookup puts the program, which knows no frontends yet, into the network
// namespace of the calling thread.
func newLookup() (l *lookup, err error) {
	l = &lookup{frontends: -1, owned: -1, nodePorts: -1, sockets: -1, program: -1, link: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("choosing sockets by BPF, which takes CAP_BPF and Linux 5.9: %w", err), l.Close())
		}
	}()
	for _, m := range []struct {
		fd              *int
		kind, key, size uint32
		entries, flags  uint32
	}{
		{&l.frontends, unix.BPF_MAP_TYPE_HASH, 24, 4, maxFrontends, unix.BPF_F_NO_PREALLOC},
		{&l.owned, unix.BPF_MAP_TYPE_HASH, 16, 4, maxFrontends, unix.BPF_F_NO_PREALLOC},
		{&l.nodePorts, unix.BPF_MAP_TYPE_LPM_TRIE, 20, 4, 1 << 12, unix.BPF_F_NO_PREALLOC},
		{&l.sockets, unix.BPF_MAP_TYPE_SOCKMAP, 4, 4, slots, 0},
	} {
		attr := [5]uint32{m.kind, m.key, m.size, m.entries, m.flags}
		if *m.fd, err = bpf(unix.BPF_MAP_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			return l, err
		}
	}
	if l.program, err = load(l.code(true)); err != nil {
		l.program, err = load(l.code(false))
	}
	if err != nil {
		return l, err
	}
	if l.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return l, err
	}
	l.link, err = l.attach()
	return l, err
}

// attach puts the program into the namespace, and gives the link by which it stays there.
func (l *lookup) attach() (link int, err error) {
	attr := [4]uint32{uint32(l.program), uint32(l.namespace.Fd()), unix.BPF_SK_LOOKUP, 0}
	return bpf(unix.BPF_LINK_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// isAttached reports whether the program is where it was put.
func (l *lookup) isAttached() (bool, error) {
	// The kernel's bpf_link_info: the link of a program that somebody has taken away
	// is one of no namespace.
	var info struct {
		_         [4]uint32
		namespace uint32
		_         [64]byte
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(l.link), uint32(unsafe.Sizeof(info)), address(&pin, &info)}
	_, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err == nil && info.namespace != 0, err
}

// restore puts the program back where somebody has taken it away.
func (l *lookup) restore() error {
	is, err := l.isAttached()
	if err != nil || is {
		return err
	}
	link, err := l.attach()
	if err != nil {
		return fmt.Errorf("userspace: choosing sockets by BPF: %w", err)
	}
	gone := l.link
	l.link = link
	return os.NewSyscallError("close", unix.Close(gone))
}

// Close takes the program away.
func (l *lookup) Close() error {
	var errs []error
	if l.namespace != nil {
		errs = append(errs, l.namespace.Close())
	}
	for _, fd := range []*int{&l.link, &l.program, &l.sockets, &l.nodePorts, &l.owned, &l.frontends} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
		}
		*fd = -1
	}
	return errors.Join(errs...)
}

func bpf(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
	if errno != 0 {
		return -1, os.NewSyscallError("bpf", errno)
	}
	return int(n), nil
}

// address gives what the kernel is told of by number. It is pinned: a stack, where it
// may be otherwise, can move before the kernel looks, and takes no numbers along.
func address[T any](pin *runtime.Pinner, first *T) uint64 {
	pin.Pin(first)
	return uint64(uintptr(unsafe.Pointer(first)))
}

func load(code []instruction) (int, error) {
	licence := []byte("Apache-2.0\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	attr := struct {
		kind, count             uint32
		code, licence           uint64
		logLevel, logSize       uint32
		logBuf                  uint64
		version, flags          uint32
		name                    [16]byte
		ifindex, expectedAttach uint32
	}{
		kind: unix.BPF_PROG_TYPE_SK_LOOKUP, count: uint32(len(code)), expectedAttach: unix.BPF_SK_LOOKUP,
		code: address(&pin, &code[0]), licence: address(&pin, &licence[0]),
		name: [16]byte{'v', 'i', 'p', 'k', 'i', 't'},
	}
	return bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// element changes an element of a map; a nil value removes it.
func element(table int, key, value []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	attr := struct {
		fd, _             uint32
		key, value, flags uint64
	}{fd: uint32(table), key: address(&pin, &key[0])}
	command := unix.BPF_MAP_DELETE_ELEM
	if value != nil {
		command, attr.value = unix.BPF_MAP_UPDATE_ELEM, address(&pin, &value[0])
	}
	_, err := bpf(command, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if value == nil && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// setFrontend says what becomes of a frontend; a node port has the unspecified
// address of its family.
func (l *lookup) setFrontend(proto uint8, at netip.AddrPort, verdict []byte) error {
	key := append(native(uint32(proto)), native(uint32(at.Port()))...)
	return element(l.frontends, append(key, wide(at.Addr())...), verdict)
}

// own makes all ports of an address the backend's.
func (l *lookup) own(a netip.Addr, yes bool) error {
	if !yes {
		return element(l.owned, wide(a), nil)
	}
	return element(l.owned, wide(a), native(1))
}

// serveNodePorts says whether node ports answer at addresses: 1 for yes, 0 for no,
// nil for what is said of the next larger range.
func (l *lookup) serveNodePorts(p netip.Prefix, value []byte) error {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return element(l.nodePorts, append(native(uint32(bits)), wide(p.Masked().Addr())...), value)
}

// setSocket puts a socket into its slot.
func (l *lookup) setSocket(slot uint32, fd int) error {
	return element(l.sockets, native(slot), native(uint32(fd)))
}

// wide gives an address in the form of the program: IPv4 within IPv6.
func wide(a netip.Addr) []byte {
	b := a.As16()
	return b[:]
}
