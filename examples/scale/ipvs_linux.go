package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	moby "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// countServers returns the number of entries of sets, addresses of the device, virtual servers
// and real servers but those that drain.
func countServers() (total int, err error) {
	f, err := openServers("vipkit-ipvs0")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	sets, err := f.ns.Netlink().IpsetListAll()
	if err != nil {
		return 0, err
	}
	for i := range sets {
		total += len(sets[i].Entries)
	}
	addresses, err := f.ns.Netlink().AddrList(f.device, unix.AF_UNSPEC)
	if err != nil {
		return 0, err
	}
	servers, err := f.servers.GetServices()
	total += len(addresses) + len(servers)
	for i := range servers {
		real, listErr := f.servers.GetDestinations(servers[i])
		for _, d := range real {
			total += min(d.Weight, 1)
		}
		err = errors.Join(err, listErr)
	}
	return total, err
}

// serverFloor writes the same objects as the backend ipvs by the same packages, without anything else: no
// snapshots, no rendering, no comparison, no rules.
type serverFloor struct {
	world   *world
	ns      *netns.NS
	servers *moby.Handle
	device  netlink.Link
}

// openServers connects to the network namespace of the calling thread, which has the device.
func openServers(device string) (*serverFloor, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	f := &serverFloor{ns: ns}
	if f.servers, err = moby.New(""); err == nil {
		f.device, err = ns.Netlink().LinkByName(device)
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *serverFloor) close() error {
	if f.servers != nil {
		f.servers.Close()
	}
	return f.ns.Close()
}

// measureServerFloor fills in the floor of the report.
func measureServerFloor(r *report) (err error) {
	const device = "floor-ipvs0"
	if err := addDummy(device); err != nil {
		return err
	}
	f, err := openServers(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	f.world = newWorld(r.Services, r.Endpoints)
	return r.measureFloor(f.world, f.cold, f.replace)
}

// addDummy adds a dummy device to the network namespace of the calling thread.
func addDummy(name string) (err error) {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return ns.Netlink().LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}})
}

// cold writes everything, in the backend's order.
func (f *serverFloor) cold() error {
	n := f.ns.Netlink()
	sets := []struct{ name, typ string }{{"FLOOR-IPVS-IPS", "hash:ip"}, {"FLOOR-IPVS-SERVERS", "hash:ip,port"}, {"FLOOR-CLUSTER-IP", "hash:ip,port"}}
	for _, s := range sets {
		if err := n.IpsetCreate(s.name, s.typ, netlink.IpsetCreateOptions{MaxElements: 1 << 24}); err != nil {
			return err
		}
	}
	tcp, port := uint8(unix.IPPROTO_TCP), uint16(servicePort)
	for i := range f.world.endpoints {
		at := serverAt(i)
		entry := netlink.IPSetEntry{IP: at.Address, Protocol: &tcp, Port: &port}
		err := errors.Join(
			n.IpsetAdd(sets[0].name, &netlink.IPSetEntry{IP: at.Address}),
			n.IpsetAdd(sets[1].name, &entry),
			n.AddrAdd(f.device, &netlink.Addr{IPNet: netlink.NewIPNet(at.Address), Flags: unix.IFA_F_NODAD}),
			f.servers.NewService(at))
		for _, e := range f.world.endpoints[i] {
			err = errors.Join(err, f.servers.NewDestination(at, realServer(e)))
		}
		if err = errors.Join(err, n.IpsetAdd(sets[2].name, &entry)); err != nil {
			return fmt.Errorf("service %d: %w", i, err)
		}
	}
	return nil
}

// replace replaces an endpoint of a service.
func (f *serverFloor) replace(service, slot int) error {
	old, e := realServer(f.world.endpoints[service][slot]), f.world.next()
	f.world.endpoints[service][slot] = e
	at := serverAt(service)
	old.Weight, old.UpperThreshold = 0, 1 // it drains
	return errors.Join(f.servers.UpdateDestination(at, old), f.servers.NewDestination(at, realServer(e)))
}

func serverAt(service int) *moby.Service {
	return &moby.Service{
		AddressFamily: unix.AF_INET, Netmask: ^uint32(0), SchedName: moby.RoundRobin,
		Protocol: unix.IPPROTO_TCP, Address: addressOf(clusterIP(service)), Port: servicePort,
	}
}

func realServer(endpoint uint32) *moby.Destination {
	return &moby.Destination{Address: addressOf(endpointAddr(endpoint)), Port: endpointPort, Weight: 1}
}

func addressOf(a netip.Addr) net.IP { return a.AsSlice() }
