package userspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// kernel is the edge to nf_tables and to the routing rules.
type kernel struct {
	*renderer

	conn   *nfnetlink.Conn
	routes way
	batch  nfnetlink.Batch
	// rebuild is set between Replace and the one commit that follows it, which
	// begins by removing the tables.
	rebuild bool
	monitor *nfnetlink.Monitor
	// transact makes one transaction of a batch; it is the monitor's.
	transact func(context.Context, *nfnetlink.Batch) error
	ops      atomic.Uint64
}

// Operations implements [proxy.OperationCounter].
func (k *kernel) Operations() uint64 { return k.ops.Load() }

func (k *kernel) close() error { return errors.Join(k.monitor.Close(), k.conn.Close()) }

func (k *kernel) table(fam nfnetlink.Family) nfnetlink.Table {
	return nfnetlink.Table{Family: fam, Name: k.renderer.options.Identity.Name}
}

func allFamilies() []nfnetlink.Family { return []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} }

// Replace implements [backends.Replacer].
func (k *kernel) Replace(_ context.Context, _ proxy.Snapshot, must bool) (yes bool, pieces int) {
	if must && k.monitor.Begin() != nil {
		return false, 0 // List fails in the same way, and returns the error
	}
	// The one commit removes what there is in the same transaction.
	k.rebuild = must
	return must, 1
}

// Replaced implements [backends.Replacer].
func (k *kernel) Replaced(context.Context) error { return nil }

// WaitDrift implements [proxy.DriftChecker], for all but routing rules: these are looked
// at by resyncs.
func (k *kernel) WaitDrift(ctx context.Context) error { return k.monitor.Wait(ctx) }

// Drifted implements [proxy.DriftChecker]: commits of others to our tables are noticed,
// and the routing rules are looked at.
func (k *kernel) Drifted(context.Context) bool {
	if k.monitor.Noticed() {
		return true
	}
	for _, fam := range k.renderer.families() {
		if state, err := k.routes.state(fam); err != nil || state != routesComplete {
			return true
		}
	}
	return false
}

// Commit implements [backends.Target].
func (k *kernel) Commit(ctx context.Context, ops []op) error {
	w := writer{kernel: k}
	if err := w.write(ops); err != nil {
		return err
	}
	undo, err := k.addRoutes(ops)
	if err != nil {
		return errors.Join(explain(err), undo())
	}
	err = k.transact(ctx, &k.batch)
	var size *nfnetlink.SizeError
	if errors.As(err, &size) && len(ops) > 1 && !k.rebuild {
		// As in an unprivileged user namespace. The order of the operations
		// keeps every state between them consistent.
		half := len(ops) / 2
		return backends.CommitBoth(ctx, k.Commit, ops[:half], ops[half:])
	}
	if errors.Is(err, unix.ENOENT) && k.monitor.Noticed() {
		// Others took something away; it is not the kernel that lacks it.
		err = fmt.Errorf("userspace: %w: %w: %w", proxy.ErrDataplaneLost, backends.ErrConflict, err)
		return errors.Join(err, undo())
	}
	if err != nil {
		return errors.Join(k.explainCommit(err), undo())
	}
	k.rebuild = false
	k.ops.Add(uint64(len(ops)))
	return k.removeRoutes(ops)
}

// explainCommit is explain for a commit. A smaller commit that begins by removing the tables
// would leave packets with only a part of the rules, so that none is tried for want of memory.
func (k *kernel) explainCommit(err error) error {
	err = explain(err)
	if k.rebuild && errors.Is(err, backends.ErrExhausted) {
		return fmt.Errorf("%w: %w", backends.ErrUnavailable, err)
	}
	return err
}

// addRoutes makes routing rules and routes; undo removes those that were not there before.
// Replace adds everything without looking at what is there.
func (k *kernel) addRoutes(ops []op) (undo func() error, err error) {
	var done []nfnetlink.Family
	undo = func() (err error) {
		for _, fam := range done {
			err = errors.Join(err, k.routes.remove(fam))
		}
		return err
	}
	for i := range ops {
		if ops[i].Key.kind != kindRouting || ops[i].Kind == backends.Remove {
			continue
		}
		fam := ops[i].Key.fam
		before, err := k.routes.state(fam)
		if err != nil {
			return undo, err
		}
		if before == routesAbsent {
			done = append(done, fam)
		}
		if err := k.routes.add(fam); err != nil {
			return undo, err
		}
	}
	return undo, nil
}

func (k *kernel) removeRoutes(ops []op) error {
	for i := range ops {
		if ops[i].Key.kind == kindRouting && ops[i].Kind == backends.Remove {
			if err := k.routes.remove(ops[i].Key.fam); err != nil {
				return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
			}
		}
	}
	return nil
}

// Cleanup implements [backends.Cleaner].
func (k *kernel) Cleanup(ctx context.Context) error {
	k.batch.Reset()
	for _, fam := range allFamilies() {
		exists, _, err := k.exists(ctx, fam)
		if err != nil {
			return err
		}
		if exists {
			k.batch.DelTable(k.table(fam))
			k.ops.Add(1)
		}
	}
	if err := k.monitor.Commit(ctx, &k.batch); err != nil {
		return explain(err)
	}
	for _, fam := range allFamilies() {
		state, err := k.routes.state(fam)
		if err == nil && state != routesAbsent {
			k.ops.Add(1)
			err = k.routes.remove(fam)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether the table of a family exists, and whether its rules are not in
// force.
func (k *kernel) exists(ctx context.Context, fam nfnetlink.Family) (exists, dormant bool, err error) {
	var all []nfnetlink.TableInfo
	if err := k.conn.Tables(ctx, fam, nfnetlink.Collect(&all)); err != nil {
		return false, false, explain(err)
	}
	for i := range all {
		if all[i].Name == k.renderer.options.Identity.Name {
			return true, all[i].Flags&unix.NFT_TABLE_F_DORMANT != 0, nil
		}
	}
	return false, false, nil
}

// explain puts an error of the kernel in terms that callers can act on.
func explain(err error) error {
	var refused *nfnetlink.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nfnetlink.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	case errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("userspace: %w: %w", backends.ErrExhausted, err)
	case errors.Is(err, unix.EPERM) && errors.As(err, &refused) && refused.Table.Name != "" && !strings.HasPrefix(refused.Op, "list"):
		return fmt.Errorf("userspace: %w: table %v belongs to another process (flag owner): %w", backends.ErrUnavailable, refused.Table, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("userspace: %w: %w: CAP_NET_ADMIN is needed in the network namespace: %w", backends.ErrUnavailable, proxy.ErrUnsupported, err)
	case !errors.As(err, &refused):
		return err
	}
	return explainRefusal(refused, err)
}

// explainRefusal does so for what the kernel refused.
func explainRefusal(refused *nfnetlink.Error, err error) error {
	switch {
	case strings.HasPrefix(refused.Op, "add rule") && (refused.Errno == unix.ENOENT || refused.Errno == unix.EOPNOTSUPP):
		return fmt.Errorf("userspace: %w: the kernel lacks something that the rules of chain %s need (nft_nat, nft_fib, nft_ct; for TPROXY nft_tproxy and nft_socket, too): %w", proxy.ErrUnsupported, refused.Object, err)
	case refused.Errno == unix.ENOENT || refused.Errno == unix.EEXIST || refused.Errno == unix.EBUSY:
		return fmt.Errorf("userspace: %w: %w", backends.ErrConflict, err)
	case refused.Errno == unix.EOPNOTSUPP || refused.Errno == unix.EAFNOSUPPORT || refused.Errno == unix.EPROTONOSUPPORT:
		return fmt.Errorf("userspace: %w: %w", proxy.ErrUnsupported, err)
	}
	return fmt.Errorf("userspace: %w", err)
}
