package userspace

import (
	"errors"
	"fmt"
	"math/bits"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// routes makes marked packets come to this host's sockets, whatever their
// destination: a routing rule for the mark leads to a table in which everything
// is local. Rule and table are numbered by the bit of the mark.
type routes struct {
	handle *netlink.Handle
	mark   uint32
}

type routesState uint8

const (
	routesAbsent routesState = iota
	routesPartial
	routesComplete
)

const (
	// firstTable and firstPriority are of the numbers that nobody else is
	// known to use; the priority is before that of the main table.
	firstTable    = 7_690_000
	firstPriority = 760
)

func (r *routes) number() int { return bits.TrailingZeros32(r.mark) }

func linkFamily(fam nfnetlink.Family) int {
	if fam == nfnetlink.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (r *routes) rule(fam nfnetlink.Family) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = linkFamily(fam), firstPriority+r.number(), firstTable+r.number()
	mask := r.mark
	rule.Mark, rule.Mask = r.mark, &mask
	return rule
}

func (r *routes) route(fam nfnetlink.Family) (*netlink.Route, error) {
	lo, err := r.handle.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("userspace: the interface lo: %w", err)
	}
	everything := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if fam == nfnetlink.IPv6 {
		everything = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{
		Family: linkFamily(fam), LinkIndex: lo.Attrs().Index, Dst: everything,
		Table: firstTable + r.number(), Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	}, nil
}

// state says whether rule and route are there.
func (r *routes) state(fam nfnetlink.Family) (routesState, error) {
	want := r.rule(fam)
	rules, err := r.handle.RuleListFiltered(linkFamily(fam), want, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	if err != nil {
		return routesAbsent, fmt.Errorf("userspace: listing routing rules: %w", err)
	}
	found, foreign := 0, 0
	for i := range rules {
		if rules[i].Mark == want.Mark && rules[i].Mask != nil && *rules[i].Mask == *want.Mask {
			found++
		} else {
			foreign++
		}
	}
	list, err := r.handle.RouteListFiltered(linkFamily(fam), &netlink.Route{Table: want.Table, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return routesAbsent, fmt.Errorf("userspace: listing routes: %w", err)
	}
	switch {
	case found == 1 && foreign == 0 && len(list) == 1:
		return routesComplete, nil
	case found == 0 && foreign == 0 && len(list) == 0:
		return routesAbsent, nil
	}
	return routesPartial, nil
}

// add makes rule and route, also where one of them is there already.
func (r *routes) add(fam nfnetlink.Family) error {
	if err := r.remove(fam); err != nil {
		return err
	}
	route, err := r.route(fam)
	if err == nil {
		err = r.handle.RouteReplace(route)
	}
	if err == nil {
		err = r.handle.RuleAdd(r.rule(fam))
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("userspace: %w: CAP_NET_ADMIN is needed for routing rules: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("userspace: %w: routing by marks: %w", proxy.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("userspace: routing marked packets to this host: %w", err)
	}
	return nil
}

// remove takes rule and route away, as far as they are there.
func (r *routes) remove(fam nfnetlink.Family) error {
	const enough = 16 // rules may stand there several times
	var err error
	for range enough {
		if err = r.handle.RuleDel(r.rule(fam)); err != nil {
			break
		}
	}
	if !isGone(err) {
		return fmt.Errorf("userspace: removing a routing rule: %w", err)
	}
	route, err := r.route(fam)
	if err != nil {
		return err
	}
	if err := r.handle.RouteDel(route); !isGone(err) {
		return fmt.Errorf("userspace: removing a route: %w", err)
	}
	return nil
}

func isGone(err error) bool {
	return err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
}
