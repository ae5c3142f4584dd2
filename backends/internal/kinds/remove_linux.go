package kinds

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/internal/nft"
	"github.com/vipkit/vipkit/proxy"
)

// remove removes what a kind has left under its default identity, if there is anything. What ipvs has
// left stays, and [Instance.CheckNode] names it: to remove virtual servers would end connections
// that they still carry.
func (i *Instance) remove(ctx context.Context, k Kind) error {
	name := k.Defaults().Name
	switch k {
	case NFTables:
		return i.removeTables(ctx, name, name+SecondSuffix)
	case Userspace:
		if err := i.removeTables(ctx, name); err != nil {
			return err
		}
		return i.removeRouting(k.Defaults().Mark)
	case IPTablesNFT:
		if i.nft == nil {
			return nil
		}
		return ignoreUnsupported(xtables.RemoveNFT(ctx, i.nft, IPTablesNames(name)))
	case IPTablesLegacy:
		if i.legacy != nil {
			return i.legacy.Cleanup(ctx)
		}
	case IPVS:
	}
	return nil
}

// ignoreUnsupported returns nil for the error of a kernel without nf_tables, which has no tables.
func ignoreUnsupported(err error) error {
	if err = nft.Explain(err); errors.Is(err, proxy.ErrUnsupported) {
		return nil
	}
	return err
}

// removeTables removes tables of nf_tables, if they exist.
func (i *Instance) removeTables(ctx context.Context, names ...string) error {
	if i.nft == nil {
		return nil
	}
	var existing []nfnetlink.Table
	for _, fam := range nft.Families() {
		for _, name := range names {
			t := nfnetlink.Table{Family: fam, Name: name}
			exists, err := i.nft.HasTable(ctx, t)
			if err != nil {
				return ignoreUnsupported(err)
			}
			if exists {
				existing = append(existing, t)
			}
		}
	}
	if len(existing) == 0 {
		return nil
	}
	return nft.Over(i.nft).RemoveTables(ctx, existing...)
}

// routing is what kind Userspace has outside of nf_tables for one address family.
type routing struct {
	rules []netlink.Rule
	// routes are those of its table, local those in the table of local addresses.
	routes, local []netlink.Route
}

// removeRouting removes the routing rules and routes of kind Userspace with a mark.
func (i *Instance) removeRouting(mark uint32) error {
	for _, family := range [...]int{unix.AF_INET, unix.AF_INET6} {
		found, err := i.findRouting(family, mark)
		if err != nil {
			return err
		}
		for _, r := range found.rules {
			if err := i.routing.RuleDel(&r); !isGone(err) {
				return fmt.Errorf("removing a routing rule: %w", err)
			}
		}
		for _, r := range append(found.routes, found.local...) {
			if err := i.routing.RouteDel(&r); !isGone(err) {
				return fmt.Errorf("removing a route: %w", err)
			}
		}
	}
	return nil
}

// findRouting lists the routing rules and routes of kind Userspace with a mark.
func (i *Instance) findRouting(family int, mark uint32) (r routing, err error) {
	rule := netlink.NewRule()
	rule.Priority, rule.Table = RulePriority(mark), RoutingTable(mark)
	r.rules, err = netns.Consistent(func() ([]netlink.Rule, error) {
		return i.routing.RuleListFiltered(family, rule, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	})
	if !isGone(err) {
		return r, fmt.Errorf("listing routing rules: %w", err)
	}
	r.routes, err = i.listRoutes(family, &netlink.Route{Table: RoutingTable(mark)}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return r, err
	}
	r.local, err = i.listRoutes(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: RouteProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	r.local = slices.DeleteFunc(r.local, func(r netlink.Route) bool { return r.Priority != RoutingTable(mark) })
	return r, err
}

func (i *Instance) listRoutes(family int, filter *netlink.Route, by uint64) ([]netlink.Route, error) {
	all, err := netns.Consistent(func() ([]netlink.Route, error) { return i.routing.RouteListFiltered(family, filter, by) })
	if !isGone(err) {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	return all, nil
}

// isGone reports whether an error of a routing request says that there is nothing: the object, or the
// address family.
func isGone(err error) bool {
	return err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
}

// openLegacy returns a backend that only removes the chains of iptables' legacy flavour, nil if the
// system lacks the programs.
func openLegacy() (*xtables.Backend, error) {
	c := xtables.Config{Options: xtables.Options{Flavour: xtables.Legacy, LockWait: xtables.DefaultLockWait}, Names: IPTablesNames(IPTablesLegacy.Defaults().Name)}
	for _, f := range [...]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		c.Families = append(c.Families, xtables.Family{Family: f})
	}
	b, err := xtables.New(c)
	if errors.Is(err, proxy.ErrUnsupported) {
		return nil, nil //nolint:nilnil // without the programs nothing can be removed
	}
	return b, err
}
