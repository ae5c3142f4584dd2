package nodecheck

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// bridge is a bridge that has ports.
type bridge struct {
	name  string
	addrs []netip.Addr // without link-local ones
	// lacksHairpins is true if a port has hairpin_mode off, so that the bridge does not
	// send a packet out of the port on which it was received. A bridge in promiscuous
	// mode needs no hairpin_mode: it passes the packet to the node, which sends it back.
	lacksHairpins bool
}

// listBridges lists the bridges with ports in the network namespace of the thread.
func listBridges() ([]bridge, error) {
	ports, err := listPorts()
	if err != nil {
		return nil, fmt.Errorf("ports of bridges: %w", err)
	}
	var all []bridge
	for index, lacksHairpins := range ports {
		link, err := netlink.LinkByIndex(index)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			continue // Another program removed it in the meantime.
		}
		if err != nil {
			return nil, fmt.Errorf("interface %d: %w", index, err)
		}
		b := bridge{name: link.Attrs().Name, lacksHairpins: lacksHairpins && link.Attrs().Promisc == 0}
		if b.addrs, err = addresses(link); err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", b.name, err)
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b bridge) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// addresses lists the addresses of an interface without link-local ones.
func addresses(link netlink.Link) (all []netip.Addr, err error) {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}

// listPorts returns the interface indexes of bridges that have ports, and whether a port
// of the bridge has hairpin_mode off.
func listPorts() (map[int]bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	bridges := map[int]bool{}
	for _, m := range messages {
		master, hairpin, err := readPort(m)
		if err != nil {
			return nil, err
		}
		if master != 0 {
			bridges[master] = bridges[master] || !hairpin
		}
	}
	return bridges, nil
}

// readPort returns the interface index of the bridge that an interface is a port of, or 0,
// and whether hairpin_mode of the port is on.
func readPort(message []byte) (master int, hairpin bool, err error) {
	attributes, err := nl.ParseRouteAttr(message[unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, false, err
	}
	isPort := false
	for _, a := range attributes {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_MASTER:
			master = int(nl.NativeEndian().Uint32(a.Value))
		case unix.IFLA_PROTINFO:
			isPort = true
			if hairpin, err = isHairpin(a.Value); err != nil {
				return 0, false, err
			}
		}
	}
	if !isPort {
		return 0, false, nil
	}
	return master, hairpin, nil
}

func isHairpin(port []byte) (bool, error) {
	attributes, err := nl.ParseRouteAttr(port)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.IFLA_BRPORT_MODE && len(a.Value) > 0 && a.Value[0] != 0
	}), nil
}
