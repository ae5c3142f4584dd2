package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var (
	// ErrUnsupported reports that the kernel lacks ipset, or a type of sets.
	ErrUnsupported = errors.New("unsupported by the kernel")
	// ErrNotExist reports that a set does not exist.
	ErrNotExist = errors.New("the set does not exist")
	// ErrDiffers reports that a set of that name exists, of another type or with other options.
	ErrDiffers = errors.New("the set exists and differs")
)

// Numbers that the packages of netlink lack.
const (
	errFull  = nl.IPSET_ERR_TYPE_SPECIFIC
	attrPad  = 30 // IPSET_ATTR_PAD
	fullMask = 1<<32 - 1
	// batch limits the entries of one request: the length of an attribute is a 16-bit number.
	batch = 500
)

// Sets is a connection to the kernel's ipset. Calls must not overlap.
type Sets struct {
	handle *netlink.Handle
	socket *nl.NetlinkSocket // for requests that the handle lacks
	seq    nl.SocketHandle
}

// OpenSets connects to the ipset of the network namespace of the calling thread. The connection stays
// in that namespace. The error wraps [ErrUnsupported] if the kernel lacks ipset.
func OpenSets() (*Sets, error) {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("ipset: %w", err)
	}
	s := &Sets{handle: h}
	err = h.SetSocketTimeout(answerTimeout)
	if err == nil {
		s.socket, err = nl.Subscribe(unix.NETLINK_NETFILTER)
	}
	if err == nil {
		timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
		s.seq.Socket, err = s.socket, s.socket.SetReceiveTimeout(&timeout)
	}
	if err == nil {
		err = guarded(func() error { _, _, err := h.IpsetProtocol(); return err })
	}
	if errors.Is(err, unix.EINVAL) {
		err = ErrUnsupported
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ipset: %w", err), s.Close())
	}
	return s, nil
}

// Close closes the connection. It must be called once at most.
func (s *Sets) Close() error {
	s.handle.Close()
	if s.socket != nil {
		s.socket.Close()
	}
	return nil
}

// Set describes a set.
type Set struct {
	Name string
	Type string // such as hash:ip,port
	IPv6 bool
	// Marked says that entries have a mark beside their key.
	Marked bool
	// Limit is the largest number of entries.
	Limit uint32
}

// Create makes a set. One that exists with the same options is a success; the kernel does not compare the family.
func (s *Sets) Create(set Set) error {
	o := netlink.IpsetCreateOptions{Replace: true, Skbinfo: set.Marked, MaxElements: set.Limit, Family: unix.AF_INET}
	if set.IPv6 {
		o.Family = unix.AF_INET6
	}
	err := guarded(func() error { return s.handle.IpsetCreate(set.Name, set.Type, o) })
	if errors.Is(err, unix.EEXIST) {
		err = ErrDiffers
	}
	return explainSet("create", set.Name, err)
}

// Destroy destroys a set. One that does not exist is a success.
func (s *Sets) Destroy(name string) error {
	return ignoreMissing(explainSet("destroy", name, guarded(func() error { return s.handle.IpsetDestroy(name) })))
}

// Flush removes all entries of a set. One that does not exist is a success.
func (s *Sets) Flush(name string) error {
	return ignoreMissing(explainSet("flush", name, guarded(func() error { return s.handle.IpsetFlush(name) })))
}

// guarded returns the error of a call of package netlink, which panics if the error is no errno, as when
// another program sends a message to the socket.
func guarded(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("ipvs: netlink: %v", r)
		}
	}()
	return call()
}

func ignoreMissing(err error) error {
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

// explainSet says what was to be done with which set, and what the error of the kernel means.
func explainSet(action, set string, err error) error {
	var number uintptr
	if e, ok := errors.AsType[nl.IPSetError](err); ok {
		number = uintptr(e)
	} else if e, ok := errors.AsType[syscall.Errno](err); ok && e > nl.IPSET_ERR_PRIVATE {
		number, err = uintptr(e), nl.IPSetError(e)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		err = ErrNotExist
	case number == nl.IPSET_ERR_FIND_TYPE:
		err = ErrUnsupported
	case number == nl.IPSET_ERR_BUSY, number == nl.IPSET_ERR_REFERENCED:
		err = fmt.Errorf("a rule, a set or a listing uses it (%w)", err)
	case number == errFull:
		err = fmt.Errorf("it is full (%w)", err)
	}
	return fmt.Errorf("ipset: %s set %s: %w", action, set, err)
}

// Entry is an entry of a set. All fields before Mark are its key.
type Entry struct {
	Addr netip.Addr
	// Protocol and Port are for the types hash:ip,port and hash:ip,port,net.
	Protocol uint8
	Port     uint16
	// Net is the network of hash:ip,port,net, of a length above 0.
	Net netip.Prefix
	// Mark is for sets with marks: the target SET gives it to packets, with a full mask. 0 is no mark.
	Mark uint32
	// Foreign is set by Entries if another program has given the entry anything else. Adding the
	// entry removes that.
	Foreign bool
}

// SetOp adds or deletes an entry.
type SetOp struct {
	Set    string
	Delete bool // ignores the mark
	Entry  Entry
}

// Do carries out changes of entries, and returns why some failed, by their index. The others are carried out. An error
// means that it is unknown which ones are. Adding an entry that exists gives it the new mark, and deleting a missing one
// succeeds. Changes of different sets may change places.
//
// The kernel stops at the first entry of a request that it refuses: Do then sends each one of them alone.
func (s *Sets) Do(ops []SetOp) (failed map[int]error, err error) {
	type kind struct {
		set string
		del bool
	}
	var order []kind
	of := map[kind][]int{}
	for i := range ops {
		k := kind{ops[i].Set, ops[i].Delete}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], i)
	}
	failed = map[int]error{}
	for _, k := range order {
		for some := range slices.Chunk(of[k], batch) {
			if s.send(ops, some) == nil {
				continue
			}
			if err := s.sendSingly(ops, some, failed); err != nil {
				return nil, fmt.Errorf("ipset: %w", err)
			}
		}
	}
	return failed, nil
}

// sendSingly sends changes of one set, each one alone, and adds to failed why some failed.
func (s *Sets) sendSingly(ops []SetOp, some []int, failed map[int]error) error {
	for _, i := range some {
		err := s.send(ops, []int{i})
		if err == nil {
			continue
		}
		if _, isRefusal := errors.AsType[syscall.Errno](err); !isRefusal || errors.Is(err, unix.EAGAIN) {
			return err
		}
		failed[i] = explainSet(fmt.Sprintf("change %+v of", ops[i].Entry), ops[i].Set, err)
	}
	return nil
}

// send sends changes of one set, all of them additions or deletions.
func (s *Sets) send(ops []SetOp, some []int) error {
	first := &ops[some[0]]
	command := nl.IPSET_CMD_ADD
	if first.Delete {
		command = nl.IPSET_CMD_DEL
	}
	list := nl.NewRtAttr(nl.IPSET_ATTR_ADT|unix.NLA_F_NESTED, nil)
	for _, i := range some {
		list.AddChild(ops[i].data())
	}
	r := s.request(command, first.Set)
	r.AddData(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_LINENO | nl.NLA_F_NET_BYTEORDER})
	r.AddData(list)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// request returns a request about a set.
func (s *Sets) request(command int, set string) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|command, nl.GetIpsetFlags(command))
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: &s.seq}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(set)))
	return r
}

// data returns the entry, of a deletion only the key. The package netlink would leave out the mark.
func (o *SetOp) data() *nl.RtAttr {
	const ordered = unix.NLA_F_NET_BYTEORDER
	e := &o.Entry
	d := nl.NewRtAttr(nl.IPSET_ATTR_DATA|unix.NLA_F_NESTED, nil)
	address := func(typ int, a netip.Addr) {
		in := d.AddRtAttr(typ|unix.NLA_F_NESTED, nil)
		if a.Is4() {
			in.AddRtAttr(nl.IPSET_ATTR_IPADDR_IPV4|ordered, a.AsSlice())
		} else {
			in.AddRtAttr(nl.IPSET_ATTR_IPADDR_IPV6|ordered, a.AsSlice())
		}
	}
	address(nl.IPSET_ATTR_IP, e.Addr)
	if e.Protocol != 0 {
		d.AddRtAttr(nl.IPSET_ATTR_PORT|ordered, nl.BEUint16Attr(e.Port))
		d.AddRtAttr(nl.IPSET_ATTR_PROTO, nl.Uint8Attr(e.Protocol))
	}
	if e.Net.IsValid() {
		address(nl.IPSET_ATTR_IP2, e.Net.Addr())
		d.AddRtAttr(nl.IPSET_ATTR_CIDR2, nl.Uint8Attr(uint8(e.Net.Bits())))
	}
	if e.Mark != 0 && !o.Delete {
		d.AddRtAttr(nl.IPSET_ATTR_SKBMARK|ordered, binary.BigEndian.AppendUint64(nil, uint64(e.Mark)<<32|fullMask))
	}
	return d
}

// Entries returns the entries of a set. Entries of another type of set have what they share with [Entry],
// such as only a port.
func (s *Sets) Entries(set string) (all []Entry, err error) {
	answer, err := s.request(nl.IPSET_CMD_LIST, set).Execute(unix.NETLINK_NETFILTER, 0)
	for _, m := range answer {
		attrs, err := nl.ParseRouteAttr(m[min(nl.SizeofNfgenmsg, len(m)):])
		for i := 0; i < len(attrs) && err == nil; i++ {
			if attrs[i].Attr.Type&nl.NLA_TYPE_MASK == nl.IPSET_ATTR_ADT {
				all, err = appendEntries(all, attrs[i].Value)
			}
		}
		if err != nil {
			return nil, explainSet("list", set, err)
		}
	}
	return all, explainSet("list", set, err)
}

// appendEntries appends the entries of a list.
func appendEntries(all []Entry, list []byte) ([]Entry, error) {
	entries, err := nl.ParseRouteAttr(list)
	for i := 0; i < len(entries) && err == nil; i++ {
		var e Entry
		e, err = parseEntry(entries[i].Value)
		all = append(all, e)
	}
	return all, err
}

// parseEntry is the inverse of data. The package netlink would leave out the mark, and log that it is unknown.
func parseEntry(data []byte) (e Entry, err error) {
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return e, err
	}
	for i := range attrs {
		e.parse(attrs[i].Attr.Type&nl.NLA_TYPE_MASK, attrs[i].Value)
	}
	return e, nil
}

// parse adds an attribute. The kernel sends the length of a network after its address.
func (e *Entry) parse(typ uint16, v []byte) {
	switch typ {
	case nl.IPSET_ATTR_IP:
		e.Addr = nested(v)
	case nl.IPSET_ATTR_IP2:
		e.Net = netip.PrefixFrom(nested(v), nested(v).BitLen())
	case nl.IPSET_ATTR_CIDR2:
		e.Net = netip.PrefixFrom(e.Net.Addr(), int(number(v)))
	case nl.IPSET_ATTR_PORT:
		e.Port = uint16(number(v))
	case nl.IPSET_ATTR_PROTO:
		e.Protocol = uint8(number(v))
	case nl.IPSET_ATTR_SKBMARK:
		mark := number(v)
		e.Mark = uint32(mark >> 32)
		e.Foreign = e.Foreign || e.Mark == 0 || uint32(mark) != fullMask
	case nl.IPSET_ATTR_BYTES, nl.IPSET_ATTR_PACKETS, nl.IPSET_ATTR_LINENO, attrPad:
	default:
		e.Foreign = true
	}
}

// nested returns the address in an attribute of an attribute.
func nested(v []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(v[min(unix.SizeofRtAttr, len(v)):])
	return a
}

// number returns a number in network byte order.
func number(v []byte) (n uint64) {
	for _, b := range v {
		n = n<<8 | uint64(b)
	}
	return n
}
