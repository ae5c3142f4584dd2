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
	addrs []netip.Addr // but those of a link
	// lacksHairpins: it has a port that does not send out what came in by it. A bridge
	// in promiscuous mode has the node do that.
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
		if err != nil {
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				continue
			}
			return nil, fmt.Errorf("interface %d: %w", index, err)
		}
		b := bridge{name: link.Attrs().Name, lacksHairpins: lacksHairpins && link.Attrs().Promisc == 0}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("addresses of %s: %w", b.name, err)
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
				b.addrs = append(b.addrs, ip.Unmap())
			}
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b bridge) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// listPorts gives the interface numbers of bridges that have ports, and whether one of
// these is no hairpin.
func listPorts() (map[int]bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	bridges := map[int]bool{}
	for _, m := range messages {
		attributes, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		master, isPort, hairpin := 0, false, false
		for _, a := range attributes {
			switch a.Attr.Type &^ unix.NLA_F_NESTED {
			case unix.IFLA_MASTER:
				master = int(nl.NativeEndian().Uint32(a.Value))
			case unix.IFLA_PROTINFO:
				isPort = true
				if hairpin, err = isHairpin(a.Value); err != nil {
					return nil, err
				}
			}
		}
		if isPort && master != 0 {
			bridges[master] = bridges[master] || !hairpin
		}
	}
	return bridges, nil
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
