package nodecheck

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
		link, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, m)
		if err != nil {
			return nil, err
		}
		if port := link.Attrs().Protinfo; port != nil && link.Attrs().MasterIndex != 0 {
			bridges[link.Attrs().MasterIndex] = bridges[link.Attrs().MasterIndex] || !port.Hairpin
		}
	}
	return bridges, nil
}
