package localroutes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// lookup assigns packets to sockets in the kernel: a BPF program looks up the destination of a
// packet to this host before the kernel's own socket lookup. So one socket serves all
// frontends, and a program of the node that listens at every address does not get packets to
// Services.
//
// The program and its maps end with the process.
type lookup struct {
	frontends *ebpf.Map // frontendKey: action
	owned     *ebpf.Map // addresses whose other ports are refused
	nodePorts *ebpf.Map // rangeKey: 1 if node ports are served at the addresses, else 0
	sockets   *ebpf.Map // slot: socket
	program   *ebpf.Program
	link      *link.NetNsLink
	namespace *os.File // the network namespace to which the program is attached
}

// frontendKey is a key of the map of frontends. A node port has the unspecified address
// of its family.
type frontendKey struct {
	Protocol, Port uint32
	Addr           [16]byte // IPv4 as IPv4-mapped IPv6, as everywhere in the program
}

// rangeKey is a key of a map of ranges of addresses.
type rangeKey struct {
	Bits uint32
	Addr [16]byte
}

// actionRefuse is the action of a frontend that refuses all packets. All other actions are
// slots of sockets.
const actionRefuse uint32 = 99

// Slots of sockets: of the listener for pods and outside, of the one that receives nothing,
// and of the one for the node itself.
const (
	slotOthers, slotDrop, slotNode uint32 = 0, 4, 8
	slots                                 = 12
)

// slot returns the slot of a socket for a family and protocol.
func slot(first uint32, six, udp bool) uint32 {
	if six {
		first += 2
	}
	if udp {
		first++
	}
	return first
}

const maxFrontends = 1 << 20

// newLookup attaches the program, with empty maps, to the network namespace of the calling
// thread.
func newLookup() (l *lookup, err error) {
	l = &lookup{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attaching the sk_lookup program (needs CAP_BPF and Linux 5.9): %w", err), l.close())
		}
	}()
	for _, m := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&l.frontends, ebpf.MapSpec{Name: "vipkit_fronts", Type: ebpf.Hash, KeySize: 24, MaxEntries: maxFrontends, Flags: unix.BPF_F_NO_PREALLOC}},
		{&l.owned, ebpf.MapSpec{Name: "vipkit_owned", Type: ebpf.Hash, KeySize: 16, MaxEntries: maxFrontends, Flags: unix.BPF_F_NO_PREALLOC}},
		{&l.nodePorts, ebpf.MapSpec{Name: "vipkit_nodeprts", Type: ebpf.LPMTrie, KeySize: 20, MaxEntries: 1 << 12, Flags: unix.BPF_F_NO_PREALLOC}},
		{&l.sockets, ebpf.MapSpec{Name: "vipkit_sockets", Type: ebpf.SockMap, KeySize: 4, MaxEntries: slots}},
	} {
		m.spec.ValueSize = 4
		if *m.to, err = ebpf.NewMap(&m.spec); err != nil {
			return l, err
		}
	}
	if l.program, err = l.load(true); err != nil {
		l.program, err = l.load(false)
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

// load loads the program. See code for byInterface.
func (l *lookup) load(byInterface bool) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "vipkit", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "Apache-2.0",
		Instructions: l.code(byInterface),
	})
}

// attach attaches the program to the namespace, for as long as the link is open.
func (l *lookup) attach() (*link.NetNsLink, error) {
	return link.AttachNetNs(int(l.namespace.Fd()), l.program)
}

// isAttached reports whether the program is still attached: after another program has detached
// it, the link has no namespace.
func (l *lookup) isAttached() (bool, error) {
	info, err := l.link.Info()
	if err != nil {
		return false, err
	}
	return info.NetNs().NetnsInode != 0, nil
}

// restore attaches the program again if another program has detached it.
func (l *lookup) restore() error {
	is, err := l.isAttached()
	if err != nil || is {
		return err
	}
	again, err := l.attach()
	if err != nil {
		return fmt.Errorf("userspace: attaching the sk_lookup program again: %w", err)
	}
	detached := l.link
	l.link = again
	return detached.Close()
}

// close detaches the program and removes the maps.
func (l *lookup) close() error {
	var errs []error
	if l.link != nil {
		errs = append(errs, l.link.Close())
	}
	if l.namespace != nil {
		errs = append(errs, l.namespace.Close())
	}
	// Close does nothing to a program or map that is nil.
	errs = append(errs, l.program.Close(), l.sockets.Close(), l.nodePorts.Close(), l.owned.Close(), l.frontends.Close())
	return errors.Join(errs...)
}

// remove removes an element, if it exists.
func remove(m *ebpf.Map, key any) error {
	if err := m.Delete(key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func keyOf(protocol uint8, at netip.AddrPort) frontendKey {
	return frontendKey{uint32(protocol), uint32(at.Port()), at.Addr().As16()}
}

// setFrontend sets the action of a frontend.
func (l *lookup) setFrontend(protocol uint8, at netip.AddrPort, action uint32) error {
	return l.frontends.Put(keyOf(protocol, at), action)
}

// own sets whether all ports of an address are the backend's.
func (l *lookup) own(a netip.Addr, yes bool) error {
	if !yes {
		return remove(l.owned, a.As16())
	}
	return l.owned.Put(a.As16(), uint32(1))
}

func rangeOf(p netip.Prefix) rangeKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return rangeKey{uint32(bits), p.Masked().Addr().As16()}
}

// serveNodePorts sets whether node ports are served at a range of addresses.
func (l *lookup) serveNodePorts(p netip.Prefix, yes bool) error {
	value := uint32(0)
	if yes {
		value = 1
	}
	return l.nodePorts.Put(rangeOf(p), value)
}

// setSocket puts a socket into its slot.
func (l *lookup) setSocket(slot uint32, c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = l.sockets.Put(slot, uint32(fd)) })
	return errors.Join(err, failed)
}
