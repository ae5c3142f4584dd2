package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/ipset"
	"github.com/vipkit/vipkit/internal/ipvs"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// countServers returns the number of entries of sets, addresses of the device, virtual servers
// and real servers but those that drain.
func countServers() (total int, err error) {
	f, err := openServers("vipkit-ipvs0")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	ctx := context.Background()
	sets, err := f.sets.Sets(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, s := range sets {
		total += s.Entries
	}
	addresses, err := f.device.Addrs()
	if err != nil {
		return 0, err
	}
	servers, err := f.servers.Services(ctx)
	total += len(addresses) + len(servers)
	for i := range servers {
		real, listErr := f.servers.Destinations(ctx, servers[i].Key)
		real = slices.DeleteFunc(real, func(d ipvs.DestinationState) bool { return d.Weight == 0 })
		total, err = total+len(real), errors.Join(err, listErr)
	}
	return total, err
}

// serverFloor writes the same objects as the backend ipvs, without anything else: no snapshots, no
// rendering, no comparison, no rules.
type serverFloor struct {
	world   *world
	servers *ipvs.Conn
	sets    *ipset.Conn
	routes  *rawnetlink.Conn
	device  net.Interface
}

// openServers connects to the network namespace of the calling thread, which has the device.
func openServers(device string) (f *serverFloor, err error) {
	f = &serverFloor{}
	if f.servers, err = ipvs.Open(); err == nil {
		f.sets, err = ipset.Open()
	}
	if err == nil {
		f.routes, err = rawnetlink.Open(unix.NETLINK_ROUTE)
	}
	if err == nil {
		var found *net.Interface
		if found, err = net.InterfaceByName(device); err == nil {
			f.device = *found
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *serverFloor) close() error {
	var errs []error
	if f.servers != nil {
		errs = append(errs, f.servers.Close())
	}
	if f.sets != nil {
		errs = append(errs, f.sets.Close())
	}
	if f.routes != nil {
		errs = append(errs, f.routes.Close())
	}
	return errors.Join(errs...)
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
	return r.measureFloor(f.world, func() error { return f.cold(context.Background()) }, f.replace)
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
func (f *serverFloor) cold(ctx context.Context) error {
	names := []string{"FLOOR-IPVS-IPS", "FLOOR-IPVS-SERVERS", "FLOOR-CLUSTER-IP"}
	for i, name := range names {
		s := ipset.Set{Name: name, Type: ipset.HashIPPort, MaxElem: 1 << 24}
		if i == 0 {
			s.Type = ipset.HashIP
		}
		if err := f.sets.Create(ctx, s); err != nil {
			return err
		}
	}
	var before, after []ipset.Op
	var list []ipvs.Op
	var addresses rawnetlink.Requests
	for i := range f.world.endpoints {
		at := serverAt(i)
		pair := ipset.Entry{Addr: at.Addr.Addr(), Protocol: at.Protocol, Port: at.Addr.Port()}
		before = append(before, ipset.Op{Set: names[0], Entry: ipset.Entry{Addr: pair.Addr}}, ipset.Op{Set: names[1], Entry: pair})
		after = append(after, ipset.Op{Set: names[2], Entry: pair})
		f.address(&addresses, pair.Addr)
		list = append(list, ipvs.AddService(at, ipvs.ServiceConfig{Scheduler: ipvs.RR}))
		for _, e := range f.world.endpoints[i] {
			list = append(list, ipvs.AddDestination(at, ipvs.Destination{Addr: realServer(e), Weight: 1}))
		}
	}
	if err := f.entries(ctx, before); err != nil {
		return err
	}
	if failed, err := f.routes.Do(ctx, &addresses); err != nil || len(failed) > 0 {
		return fmt.Errorf("addresses: %d failed: %w", len(failed), err)
	}
	if err := f.change(ctx, list); err != nil {
		return err
	}
	return f.entries(ctx, after)
}

// address appends a request to add an address to the device.
func (f *serverFloor) address(r *rawnetlink.Requests, a netip.Addr) {
	b := r.Begin(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	b = append(b, unix.AF_INET, 32, unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE)
	b = binary.NativeEndian.AppendUint32(b, uint32(f.device.Index))
	b = rawnetlink.AppendAttr(b, unix.IFA_LOCAL, a.AsSlice())
	r.End(rawnetlink.AppendAttr(b, unix.IFA_ADDRESS, a.AsSlice()))
}

func (f *serverFloor) entries(ctx context.Context, ops []ipset.Op) error {
	failed, err := f.sets.Do(ctx, ops)
	if err == nil && len(failed) > 0 {
		err = failed[0]
	}
	return err
}

func (f *serverFloor) change(ctx context.Context, ops []ipvs.Op) error {
	failed, err := f.servers.Do(ctx, ops)
	if err == nil && len(failed) > 0 {
		err = &failed[0]
	}
	return err
}

// replace replaces an endpoint of a service.
func (f *serverFloor) replace(service, slot int) error {
	old, e := f.world.endpoints[service][slot], f.world.next()
	f.world.endpoints[service][slot] = e
	at := serverAt(service)
	return f.change(context.Background(), []ipvs.Op{
		ipvs.SetDestination(at, ipvs.Destination{Addr: realServer(old), Upper: 1}), // it drains
		ipvs.AddDestination(at, ipvs.Destination{Addr: realServer(e), Weight: 1}),
	})
}

func serverAt(service int) ipvs.ServiceKey {
	return ipvs.ServiceKey{Protocol: unix.IPPROTO_TCP, Addr: netip.AddrPortFrom(clusterIP(service), servicePort)}
}

func realServer(endpoint uint32) netip.AddrPort {
	return netip.AddrPortFrom(endpointAddr(endpoint), endpointPort)
}
