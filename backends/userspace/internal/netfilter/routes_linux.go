package netfilter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// routingState says how much of a routing exists.
type routingState uint8

const (
	routingAbsent routingState = iota
	routingPartial
	routingComplete
)

// routes are the routing of the capture. With TPROXY, a routing rule for the mark selects a table
// in which every address is local, so that marked packets get to this host's sockets, whatever
// their destination. With both captures, routes in the table of local addresses lead to the
// listeners to which destinations are translated. The position of the mark's bit determines the
// rule's priority, the table's number, and the metric of the local routes.
type routes struct {
	*renderer
	handle *netlink.Handle
}

// rule returns the routing rule; nil for redirect.
func (r *routes) rule(f v1.IPFamily) *netlink.Rule {
	if r.Redirect {
		return nil
	}
	rule, mask := netlink.NewRule(), r.Identity.Mark
	rule.Family, rule.Priority, rule.Table = socketFamily(f), kinds.RulePriority(r.Identity.Mark), kinds.RoutingTable(r.Identity.Mark)
	rule.Mark, rule.Mask = mask, &mask
	return rule
}

// destination is where a route leads to, in a table.
type destination struct {
	table int
	to    netip.Prefix
}

// want returns the destinations of the routes.
func (r *routes) want(f v1.IPFamily) map[destination]bool {
	all := map[destination]bool{}
	if !r.Redirect {
		all[destination{kinds.RoutingTable(r.Identity.Mark), netip.PrefixFrom(ipaddr.Unspecified(f), 0)}] = true
	}
	for _, x := range r.listeners() {
		if r.isTranslated(x) {
			a := r.address(x, f).Addr()
			all[destination{unix.RT_TABLE_LOCAL, netip.PrefixFrom(a, a.BitLen())}] = true
		}
	}
	return all
}

// found is what exists with the backend's numbers. What is not its own is foreign: rules with other
// conditions, and routes that lead packets elsewhere.
type found struct{ own, foreign kinds.Routing }

func (r *routes) find(f v1.IPFamily) (x found, err error) {
	all, err := kinds.FindRouting(r.handle, socketFamily(f), r.Identity.Mark)
	if err != nil {
		return x, fmt.Errorf("userspace: %w", err)
	}
	want := r.rule(f)
	for i := range all.Rules {
		if want != nil && len(x.own.Rules) == 0 && reflect.DeepEqual(all.Rules[i], *want) {
			x.own.Rules = all.Rules[i : i+1]
		} else {
			x.foreign.Rules = append(x.foreign.Rules, all.Rules[i])
		}
	}
	missing := r.want(f)
	for i := range all.Routes {
		d := destinationOf(&all.Routes[i])
		if all.Routes[i].Type == unix.RTN_LOCAL && missing[d] {
			delete(missing, d)
			x.own.Routes = append(x.own.Routes, all.Routes[i])
		} else {
			x.foreign.Routes = append(x.foreign.Routes, all.Routes[i])
		}
	}
	return x, nil
}

func destinationOf(r *netlink.Route) destination {
	if r.Dst == nil {
		return destination{}
	}
	addr, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return destination{r.Table, netip.PrefixFrom(addr.Unmap(), bits)}
}

// state reports whether the rule and the routes exist, and no others.
func (r *routes) state(f v1.IPFamily) (routingState, error) {
	x, err := r.find(f)
	if err != nil {
		return routingAbsent, err
	}
	isWhole := len(x.own.Routes) == len(r.want(f)) && (r.Redirect || len(x.own.Rules) == 1)
	switch own, foreign := len(x.own.Rules)+len(x.own.Routes), len(x.foreign.Rules)+len(x.foreign.Routes); {
	case own+foreign == 0:
		return routingAbsent, nil
	case isWhole && foreign == 0:
		return routingComplete, nil
	}
	return routingPartial, nil
}

// add adds rule and routes, unless they exist, and then removes foreign ones, so that packets
// are routed all the time. In one case they are not: to remove a foreign rule whose conditions
// are a part of the backend's, the kernel may remove the backend's rule, which add then adds
// again.
func (r *routes) add(f v1.IPFamily) error {
	for range 2 {
		if err := r.put(f); err != nil {
			return err
		}
		x, err := r.find(f)
		if err != nil {
			return err
		}
		if err := r.delete(x.foreign); err != nil {
			return err
		}
		if state, err := r.state(f); err != nil || state == routingComplete {
			return err
		}
	}
	return nil
}

func (r *routes) put(f v1.IPFamily) error {
	lo, err := r.handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("userspace: the interface lo: %w", err)
	}
	for d := range r.want(f) {
		route := &netlink.Route{
			Family: socketFamily(f), LinkIndex: lo.Attrs().Index, Table: d.table, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
			Dst: &net.IPNet{IP: d.to.Addr().AsSlice(), Mask: net.CIDRMask(d.to.Bits(), d.to.Addr().BitLen())},
		}
		if d.table == unix.RT_TABLE_LOCAL {
			route.Protocol, route.Priority = kinds.RouteProtocol, kinds.RoutingTable(r.Identity.Mark)
		}
		if err = r.handle.RouteReplace(route); err != nil {
			break
		}
	}
	if rule := r.rule(f); err == nil && rule != nil {
		if err = r.handle.RuleAdd(rule); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("userspace: %w: routing by marks: %w", proxy.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("userspace: routing packets to this host: %w", err)
	}
	return nil
}

// remove removes rules and routes, if there are any. The kernel removes the first rule that has the
// given conditions, and perhaps further ones: so the backend's own rule, with most conditions, is
// removed first, the rest in the kernel's order.
func (r *routes) remove(f v1.IPFamily) error {
	x, err := r.find(f)
	if err != nil {
		return err
	}
	return errors.Join(r.delete(x.own), r.delete(x.foreign))
}

func (r *routes) delete(x kinds.Routing) error {
	if err := x.Remove(r.handle); err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	return nil
}
