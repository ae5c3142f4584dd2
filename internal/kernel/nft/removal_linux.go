package nft

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// AwaitPackets waits until the kernel has evaluated all packets whose evaluation began before the
// call. That takes some milliseconds, and longer if a processor is stopped, as processors of virtual
// machines may be.
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL waits for an RCU grace period; packets are evaluated within one
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(20 * time.Millisecond) // as with nohz_full, or if a filter of system calls forbids it
	}
}

// RemoveTables removes tables, those that exist, in two transactions. A packet that the kernel evaluates
// while it removes a table sees the rules, but no elements of maps any more, so that it meets rules for
// packets that match none. So the first transaction removes the base chains, whoever made them, and no
// packet is in them by the second one.
func (c *Conn) RemoveTables(ctx context.Context, tables ...nfnetlink.Table) error {
	var all nfnetlink.Batch
	for _, t := range tables {
		all.DestroyTable(t)
	}
	err := c.removeBases(ctx, tables)
	for range removalRetries {
		if !errors.Is(err, backends.ErrConflict) {
			break
		}
		err = c.removeBases(ctx, tables) // Another program has removed some meanwhile.
	}
	if err != nil {
		return err
	}
	return c.Commit(ctx, &all)
}

// removalRetries is how often other programs may remove the same base chains first.
const removalRetries = 2

// removeBases removes the base chains of tables, and waits until no packet is in them.
func (c *Conn) removeBases(ctx context.Context, tables []nfnetlink.Table) error {
	var bases nfnetlink.Batch
	for _, t := range tables {
		names, err := c.baseChains(ctx, t)
		if err != nil {
			return err
		}
		for name := range names {
			bases.FlushChain(t, name)
			bases.DelChain(t, name)
		}
	}
	if bases.Empty() {
		return nil
	}
	if err := c.Commit(ctx, &bases); err != nil {
		return err
	}
	c.Await()
	return nil
}

// baseChains returns the names of all base chains of a table. While other programs commit all the time,
// no listing is complete, but each begins with the oldest chains: so it keeps what any try has found.
func (c *Conn) baseChains(ctx context.Context, t nfnetlink.Table) (map[string]bool, error) {
	names := map[string]bool{}
	err := c.Netlink.Chains(ctx, t, nfnetlink.Visitor[nfnetlink.Chain]{Each: func(found *nfnetlink.Chain) error {
		if found.Base.Type != "" {
			names[found.Name] = true
		}
		return nil
	}})
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		return names, nil
	}
	return names, Explain(err)
}
