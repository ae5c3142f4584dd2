package userspace

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// The addresses of sockets with local routes: those for everybody but the node, of
// whom the address tells where they are, and those that take no notice of anything.
const (
	doorOthers = doorPod
	doorSink   = doorOutside
)

// localDoors opens the sockets of a family, and lets the program know them.
func (o *opening) localDoors(ctx context.Context, fam nfnetlink.Family, table *lookup) error {
	for _, d := range []struct {
		door   door
		first  uint32
		origin engine.Origin
	}{{doorOthers, slotDoor, engine.ByAddress}, {doorNode, slotNode, engine.Node}, {doorSink, slotSink, 0}} {
		at := d.door.address(&o.options, fam)
		l, p, err := o.both(ctx, at, makeFree)
		if err != nil {
			return err
		}
		for proto, socket := range map[uint8]any{protoTCP: l, protoUDP: p} {
			if err := table.introduce(socket, slot(d.first, at.Addr().Is6(), proto), d.door == doorSink); err != nil {
				return err
			}
		}
		if d.door == doorSink {
			continue
		}
		err = o.start(l, nil, &packetDoor{UDPConn: p, Replier: o.replier, origin: d.origin, frontend: o.frontendOfOthers})
		if err != nil {
			return err
		}
	}
	loopback := netip.PrefixFrom(netip.IPv6Loopback(), 128)
	if fam == nfnetlink.IPv4 {
		loopback = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	return table.serveNodePorts(loopback, native(0))
}

// frontendOfOthers gives the destination that a datagram still has, unless it comes from
// a frontend: the answer would be captured again, and two Services that answer whatever
// comes would never end to answer each other.
func (o *opening) frontendOfOthers(client netip.AddrPort, controls []byte) (netip.AddrPort, bool) {
	if o.sockets.captured.has(v1.ProtocolUDP, client) {
		return netip.AddrPort{}, false
	}
	return frontendAsSent(client, controls)
}

// introduce puts a socket into its slot. One that is deaf drops all that comes.
func (l *lookup) introduce(socket any, slot uint32, deaf bool) error {
	c, ok := socket.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if deaf {
			failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, nothing())
		}
		failed = errors.Join(failed, l.setSocket(slot, int(fd)))
	})
	return errors.Join(err, failed)
}

// nothing is a filter that lets nothing through.
func nothing() *unix.SockFprog {
	return &unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}
}
