package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// What the kernel calls CTA_FILTER, and the bits in it that say which parts of a
// tuple count.
const (
	attrFilter    = 25
	attrOrigFlags = 1

	// messageStats asks how many entries there are.
	messageStats = 5

	flagSourceAddr = 1 << 0
	flagDestAddr   = 1 << 1
	flagProtocol   = 1 << 3
	flagSourcePort = 1 << 4
	flagDestPort   = 1 << 5
)

// timeout bounds the wait for one message of the kernel.
const timeoutSeconds = 10

// kernelTable is the table of the network namespace in which it was opened.
type kernelTable struct {
	sockets map[int]*nl.SocketHandle
	routes  *netlink.Handle
}

func openTable() (table, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		routes.Close()
		return nil, err
	}
	k := &kernelTable{
		sockets: map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}},
		routes:  routes,
	}
	limit := unix.Timeval{Sec: timeoutSeconds}
	if err := errors.Join(socket.SetSendTimeout(&limit), socket.SetReceiveTimeout(&limit)); err != nil {
		return nil, errors.Join(err, k.close())
	}
	if err := k.probe(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

// probe asks what costs the kernel least. Its answer says whether one may ask at all;
// and where connection tracking is a module, to be asked is what has it loaded.
func (k *kernelTable) probe() error {
	_, err := k.request(messageStats, unix.NLM_F_ACK, unix.AF_UNSPEC).Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("CAP_NET_ADMIN is needed in the network namespace: %w", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP): // nobody takes such questions
		return fmt.Errorf("%w: the kernel lacks nf_conntrack_netlink: %w", proxy.ErrUnsupported, err)
	}
	return err
}

func (k *kernelTable) close() error {
	k.sockets[unix.NETLINK_NETFILTER].Socket.Close()
	k.routes.Close()
	return nil
}

func (k *kernelTable) request(operation, flags int, family uint8) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	r.Sockets = k.sockets
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

func (k *kernelTable) dump(f filter, visit func(flow)) error {
	family := uint8(unix.AF_INET)
	if f.family == v1.IPv6Protocol {
		family = unix.AF_INET6
		// Kernels that filter IPv6 addresses select those that differ (seen in
		// Linux 6.18). Protocol and port alone are right.
		f.addr = netip.Addr{}
	}
	r := k.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
	r.AddData(encodeTuple(f))
	r.AddData(encodeFilter(f))
	var broken error
	err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		fl, inDefaultZone, err := decodeFlow(msg)
		if err != nil {
			broken = err
			return false
		}
		if inDefaultZone {
			visit(fl)
		}
		return true
	})
	return dumpError(err, broken)
}

// dumpError gives what is wrong with a dump, of which err is what the kernel says and
// broken what became of its answer.
func dumpError(err, broken error) error {
	switch {
	case errors.Is(err, nl.ErrDumpInterrupted):
		return errInterrupted
	case err != nil:
		return err
	}
	return broken
}

// encodeTuple gives the tuple that encodeFilter selects parts of. An address is an
// IPv4 one.
func encodeTuple(f filter) *nl.RtAttr {
	addr, port := nl.CTA_IP_V4_DST, nl.CTA_PROTO_DST_PORT
	if f.bySource {
		addr, port = nl.CTA_IP_V4_SRC, nl.CTA_PROTO_SRC_PORT
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	if f.addr.IsValid() {
		ip := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
		ip.AddRtAttr(addr, f.addr.AsSlice())
		tuple.AddChild(ip)
	}
	proto := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{byte(f.proto)})
	if f.port != 0 {
		proto.AddRtAttr(port, binary.BigEndian.AppendUint16(nil, f.port))
	}
	tuple.AddChild(proto)
	return tuple
}

func encodeFilter(f filter) *nl.RtAttr {
	addr, port := uint32(flagDestAddr), uint32(flagDestPort)
	if f.bySource {
		addr, port = flagSourceAddr, flagSourcePort
	}
	flags := uint32(flagProtocol)
	if f.addr.IsValid() {
		flags |= addr
	}
	if f.port != 0 {
		flags |= port
	}
	a := nl.NewRtAttr(unix.NLA_F_NESTED|attrFilter, nil)
	a.AddRtAttr(attrOrigFlags, binary.NativeEndian.AppendUint32(nil, flags))
	return a
}

func (k *kernelTable) remove(f flow) error {
	family := uint8(unix.AF_INET)
	if f.dest.Addr().Is6() {
		family = unix.AF_INET6
	}
	r := k.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
	r.AddData(nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, f.tuple))
	if f.id != nil {
		r.AddData(nl.NewRtAttr(nl.CTA_ID, f.id))
	}
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return removeError(err)
}

// removeError gives what is wrong with a removal, of which err is what the kernel says.
func removeError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", errOffloaded, err)
	}
	return err
}

func (k *kernelTable) localAddresses() ([]netip.Addr, error) {
	list, err := k.routes.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}
