package nft

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// AwaitPackets waits until the kernel has evaluated all packets whose evaluation began before the
// call. That takes some milliseconds, and longer if a processor is stopped, as those of virtual
// machines may be.
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL waits for an RCU grace period; packets are evaluated within one
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(20 * time.Millisecond) // as with nohz_full, or if a filter of system calls forbids it
	}
}

// RemoveBases removes the base chains of some names from tables that are about to be removed, and
// calls await, which is AwaitPackets. A packet that the kernel evaluates while it removes a table
// sees the rules and no elements any more, so that it meets rules for packets that match none.
func (c *Conn) RemoveBases(ctx context.Context, tables []nfnetlink.Table, names []string, await func()) error {
	var b nfnetlink.Batch
	found := false
	for _, t := range tables {
		for _, name := range names {
			chain, err := c.Netlink.Chain(ctx, t, name)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return Explain(err)
			}
			if err != nil || chain.Base.Type == "" {
				continue
			}
			b.FlushChain(t, name)
			b.DelChain(t, name)
			found = true
		}
	}
	if !found {
		return nil
	}
	if err := c.Commit(ctx, &b); err != nil {
		return err
	}
	await()
	return nil
}
