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

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// The kernel's CTA_FILTER, and its bits for the parts of a tuple that must match.
const (
	attrFilter    = 25
	attrOrigFlags = 1

	// messageStats requests the number of entries.
	messageStats = 5

	flagProtocol = 1 << 3
)

// timeoutSeconds bounds the wait for one message of the kernel.
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
	err = errors.Join(socket.SetSendTimeout(&limit), socket.SetReceiveTimeout(&limit))
	if err == nil {
		err = k.probe()
	}
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

// probe sends the request that costs the kernel least, to check that requests are allowed
// and supported. Where connection tracking is a module, the request loads it.
func (k *kernelTable) probe() error {
	_, err := k.request(messageStats, unix.NLM_F_ACK, unix.AF_UNSPEC).Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("CAP_NET_ADMIN is needed in the network namespace: %w", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
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

func numberOf(family v1.IPFamily) uint8 {
	if family == v1.IPv6Protocol {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (k *kernelTable) dump(f filter, visit func(flow)) error {
	r := k.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, numberOf(f.family))
	tuple, parts := encode(f)
	r.AddData(tuple)
	r.AddData(parts)
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

// dumpError returns the error of a dump, given the kernel's and that of decoding.
func dumpError(err, broken error) error {
	switch {
	case errors.Is(err, nl.ErrDumpInterrupted):
		return errInterrupted
	case err != nil:
		return err
	}
	return broken
}

// encode returns a tuple, and the parts of it that select flows.
func encode(f filter) (tuple, parts *nl.RtAttr) {
	tuple = nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil).AddRtAttr(nl.CTA_PROTO_NUM, []byte{byte(f.proto)})
	parts = nl.NewRtAttr(unix.NLA_F_NESTED|attrFilter, nil)
	parts.AddRtAttr(attrOrigFlags, binary.NativeEndian.AppendUint32(nil, flagProtocol))
	return tuple, parts
}

func (k *kernelTable) remove(f flow) error {
	r := k.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, numberOf(ipaddr.FamilyOf(f.dest.Addr())))
	r.AddData(nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, f.tuple))
	if f.id != nil {
		r.AddData(nl.NewRtAttr(nl.CTA_ID, f.id))
	}
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return removeError(err)
}

// removeError returns the error of a removal, given the kernel's.
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
