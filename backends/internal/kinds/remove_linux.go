package kinds

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
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
		for _, family := range [...]int{unix.AF_INET, unix.AF_INET6} {
			found, err := FindRouting(i.at.Netlink(), family, k.Defaults().Mark)
			if err == nil {
				err = found.Remove(i.at.Netlink())
			}
			if err != nil {
				return err
			}
		}
		return nil
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
