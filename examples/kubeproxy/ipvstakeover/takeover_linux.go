package ipvstakeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// device is the dummy device that has the addresses of Services.
const device = "kube-ipvs0"

// Adopt gives the virtual servers of kube-proxy to the backend ipvs of the default identity, but not
// those at addresses of the excluded ranges. The first Apply then keeps them, with their connections, or
// removes them. Adopt works in the network namespace of the calling thread, after
// [github.com/vipkit/vipkit/backends/ipvs.PrepareNode] and before the first Apply.
func Adopt(exclude []netip.Prefix) error {
	return run("adopt virtual servers of kube-proxy", func(l *leftovers) error {
		servers, err := l.servers(exclude)
		if err != nil {
			return err
		}
		list := make([]ipvs.SetOp, len(servers))
		for i, s := range servers {
			list[i] = ipvs.SetOp{
				Set:   setName(strings.ToUpper(backends.DefaultName), s.Addr.Addr().Is6(), "IPVS-SERVERS"),
				Entry: ipvs.Entry{Addr: s.Addr.Addr(), Protocol: s.Protocol, Port: s.Addr.Port()},
			}
		}
		failed, err := l.sets.Do(list)
		return errors.Join(err, errors.Join(slices.Collect(maps.Values(failed))...))
	})
}

// Cleanup removes the virtual servers of kube-proxy, with their connections, but not those at addresses of
// the excluded ranges, and not the ones that a backend has adopted, then kube-proxy's sets and the device kube-ipvs0.
// No rule may refer to these any more: the Cleanup of backend iptables with the identity kube removes
// kube-proxy's chains. Cleanup works in the network namespace of the calling thread. It does not load the
// module ip_vs.
func Cleanup(ctx context.Context, exclude []netip.Prefix) error {
	return run("remove what kube-proxy's mode ipvs has left", func(l *leftovers) error {
		servers, err := l.servers(exclude)
		if err != nil {
			return err
		}
		for _, server := range servers {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := l.kernel.Do(ipvs.Op{Verb: ipvs.Remove, Key: server}); err != nil {
				return err
			}
		}
		var errs []error
		for _, name := range setNames() {
			errs = append(errs, l.sets.Destroy(name))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return netlink.LinkDel(l.device) // last: it shows that something is left
	})
}

// leftovers are where kube-proxy has left something.
type leftovers struct {
	sets   *ipvs.Sets
	kernel *ipvs.Conn // nil if ip_vs is not loaded
	device netlink.Link
}

// run opens leftovers for a function, unless the device is missing, and says in errors what was to be done.
func run(what string, do func(*leftovers) error) error {
	l := &leftovers{}
	err := l.open()
	if err == nil && l.device != nil {
		err = do(l)
	}
	if l.kernel != nil {
		err = errors.Join(err, l.kernel.Close())
	}
	if l.sets != nil {
		err = errors.Join(err, l.sets.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (l *leftovers) open() (err error) {
	link, err := netlink.LinkByName(device)
	_, isMissing := errors.AsType[netlink.LinkNotFoundError](err)
	switch {
	case isMissing, err == nil && link.Type() != "dummy": // a device of another type is another program's
		return nil
	case err != nil:
		return fmt.Errorf("device %s: %w", device, err)
	}
	l.device = link
	if l.sets, err = ipvs.OpenSets(); err != nil {
		return err
	}
	switch _, err := os.Stat("/proc/net/ip_vs"); {
	case errors.Is(err, fs.ErrNotExist): // without the module there are no virtual servers
		return nil
	case err != nil:
		return err
	}
	l.kernel, err = ipvs.Open()
	return err
}

// adopted are bits in the flags of virtual servers that the backend ipvs sets, and kube-proxy does not.
const adopted = 0xffff0000

// servers returns the virtual servers of kube-proxy: at addresses of its device, and at its node ports.
func (l *leftovers) servers(exclude []netip.Prefix) (found []ipvs.ServiceKey, err error) {
	if l.kernel == nil {
		return nil, nil
	}
	addresses, err := netns.Consistent(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	ofServices := map[netip.Addr]bool{} // false: other addresses of the node
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ofServices[ip.Unmap()] = ofServices[ip.Unmap()] || a.LinkIndex == l.device.Attrs().Index
		}
	}
	nodePorts, err := l.nodePorts()
	if err != nil {
		return nil, err
	}
	all, err := l.kernel.Services()
	for i := range all {
		at := all[i].Key.Addr
		isService, isLocal := ofServices[at.Addr()]
		switch {
		case all[i].Config.Flags&adopted != 0, slices.ContainsFunc(exclude, func(p netip.Prefix) bool { return p.Contains(at.Addr()) }):
		case isService, isLocal && nodePorts[nodePort{all[i].Key.Protocol, at.Port()}]:
			found = append(found, all[i].Key)
		}
	}
	return found, err
}

type nodePort struct {
	protocol uint8
	port     uint16
}

// nodePortSets are the names of the sets of node ports, without their prefix, by protocol.
func nodePortSets() map[uint8][]string {
	return map[uint8][]string{
		unix.IPPROTO_TCP:  {"NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP"},
		unix.IPPROTO_UDP:  {"NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP"},
		unix.IPPROTO_SCTP: {"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH"},
	}
}

func (l *leftovers) nodePorts() (map[nodePort]bool, error) {
	ports := map[nodePort]bool{}
	for protocol, sets := range nodePortSets() {
		for _, name := range names(sets) {
			entries, err := l.sets.Entries(name)
			if err != nil && !errors.Is(err, ipvs.ErrNotExist) {
				return nil, err
			}
			for _, e := range entries {
				ports[nodePort{protocol, e.Port}] = true
			}
		}
	}
	return ports, nil
}

// setNames returns the names of all sets of kube-proxy.
func setNames() []string {
	all := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL",
		"LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	for _, sets := range nodePortSets() {
		all = append(all, sets...)
	}
	return names(all)
}

// names returns the names of sets of kube-proxy in both IP families.
func names(sets []string) (all []string) {
	for _, base := range sets {
		all = append(all, setName("KUBE", false, base), setName("KUBE", true, base))
	}
	return all
}

// longestSet is the maximum length of the name of a set.
const longestSet = 31

// setName returns the name of a set.
func setName(owner string, isIPv6 bool, base string) string {
	name := owner + "-"
	if isIPv6 {
		name += "6-"
	}
	name += base
	return name[:min(len(name), longestSet)]
}
