package userspace

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"reflect"

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

// rules lists the routing rules with our priority that lead to our table. Those
// for another mark, or by other conditions, are not as we make them.
func (r *routes) rules(fam nfnetlink.Family) (own, odd []netlink.Rule, err error) {
	want := r.rule(fam)
	all, err := whole(func() ([]netlink.Rule, error) {
		return r.handle.RuleListFiltered(linkFamily(fam), want, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("userspace: listing routing rules: %w", err)
	}
	for i := range all {
		if reflect.DeepEqual(all[i], *want) {
			own = append(own, all[i])
		} else {
			odd = append(odd, all[i])
		}
	}
	return own, odd, nil
}

// local lists the routes of our table, in which there should be one: any other
// leads some of what is marked elsewhere.
func (r *routes) local(fam nfnetlink.Family) (own, odd []netlink.Route, err error) {
	all, err := whole(func() ([]netlink.Route, error) {
		return r.handle.RouteListFiltered(linkFamily(fam), &netlink.Route{Table: firstTable + r.number()}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("userspace: listing routes: %w", err)
	}
	for i := range all {
		if all[i].Type == unix.RTN_LOCAL && destination(&all[i]).Bits() == 0 {
			own = append(own, all[i])
		} else {
			odd = append(odd, all[i])
		}
	}
	return own, odd, nil
}

// state says whether rule and route are there, and nothing else.
func (r *routes) state(fam nfnetlink.Family) (routesState, error) {
	own, odd, err := r.rules(fam)
	if err != nil {
		return routesAbsent, err
	}
	route, others, err := r.local(fam)
	if err != nil {
		return routesAbsent, err
	}
	switch needed, excess := min(1, len(own))+min(1, len(route)), len(own)+len(route)+len(odd)+len(others); {
	case excess == 0:
		return routesAbsent, nil
	case needed == 2 && excess == 2:
		return routesComplete, nil
	}
	return routesPartial, nil
}

// add makes rule and route, also where one of them is there already. What is too
// much goes when what is needed is there: packets find their way all the time, but
// where a rule has no condition that ours has not: our own may go in its place, and is
// made again.
func (r *routes) add(fam nfnetlink.Family) error {
	for range 2 {
		if err := r.put(fam); err != nil {
			return err
		}
		if err := r.clear(fam, 1); err != nil {
			return err
		}
		if state, err := r.state(fam); err != nil || state == routesComplete {
			return err
		}
	}
	return nil
}

func (r *routes) put(fam nfnetlink.Family) error {
	route, err := r.route(fam)
	if err == nil {
		err = r.handle.RouteReplace(route)
	}
	if err == nil {
		if err = r.handle.RuleAdd(r.rule(fam)); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("userspace: %w: routing by marks: %w", proxy.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("userspace: routing marked packets to this host: %w", err)
	}
	return nil
}

// remove takes rules and routes away, as far as they are there.
func (r *routes) remove(fam nfnetlink.Family) error { return r.clear(fam, 0) }

// clear takes away what is not ours, and of what is all but some. The kernel takes
// away the first rule that has the conditions it is told, and perhaps others: those with
// most go first, and the rest in its order.
func (r *routes) clear(fam nfnetlink.Family, keep int) error {
	rules, others, err := r.rules(fam)
	if err != nil {
		return err
	}
	for _, x := range append(rules[min(keep, len(rules)):], others...) {
		if err := r.handle.RuleDel(&x); !isGone(err) {
			return fmt.Errorf("userspace: removing a routing rule: %w", err)
		}
	}
	own, odd, err := r.local(fam)
	if err != nil {
		return err
	}
	for _, x := range append(own[min(keep, len(own)):], odd...) {
		if err := r.handle.RouteDel(&x); !isGone(err) {
			return fmt.Errorf("userspace: removing a route: %w", err)
		}
	}
	return nil
}

func isGone(err error) bool {
	return err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
}
