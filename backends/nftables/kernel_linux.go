package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// listLimit is how many objects are read back from an existing table to see
// what fits. The time that takes grows with the square of their number; above
// the limit, building the table anew is faster.
const listLimit = 300_000

// kernel is the edge to nf_tables.
type kernel struct {
	book    *book
	conn    *nfnetlink.Conn
	monitor *nfnetlink.Monitor
	limits  limits
	// transact makes one transaction of a batch; it is the monitor's.
	transact func(context.Context, *nfnetlink.Batch) error
	batch    nfnetlink.Batch
	slots    map[slotPool][]slot
	fills    perSet[fill]
	// wanted counts what is wanted by the time that sets are made.
	wanted perSet[int]
	places places
	// looked says that this process has looked at all of the tables once, or made them.
	looked bool
	ops    atomic.Uint64
}

// limits are where the way of doing something changes.
type limits struct {
	// list is how many objects are read back from existing tables, set how many
	// elements a set has room for at least.
	list, set int
}

type op = backends.Op[key, value]

// Operations implements [proxy.OperationCounter]: elements, rules, chains, sets
// and tables written or removed.
func (k *kernel) Operations() uint64 { return k.ops.Load() }

// forgetSlots starts with nothing known, and room for what is wanted.
func (k *kernel) forgetSlots() {
	frontends := 0
	for _, table := range k.wanted {
		frontends += table[atServices] + table[atNodePorts]
	}
	k.slots, k.fills = make(map[slotPool][]slot, frontends), perSet[fill]{}
}

// Commit implements [backends.Target].
func (k *kernel) Commit(ctx context.Context, ops []op) error {
	first, rest := chainsAhead(ops)
	if len(first) == 0 {
		return k.commit(ctx, ops)
	}
	return backends.CommitBoth(ctx, k.commit, first, rest)
}

// commit makes one transaction if that is possible.
func (k *kernel) commit(ctx context.Context, ops []op) error {
	ops = k.places.hold(ops)
	if len(ops) == 0 {
		return nil
	}
	w := writer{kernel: k, slots: slotPlan{}}
	counts, room := k.grow(ops)
	if !room {
		return mustReplace("a full set")
	}
	k.batch.Reset()
	if k.places.beside && !k.places.begun {
		// An earlier attempt may have left something there.
		for _, fam := range []family{ipv4, ipv6} {
			k.batch.DestroyTable(k.table(fam))
		}
	}
	if err := w.write(ops); err != nil {
		return err
	}
	err := k.transact(ctx, &k.batch)
	var size *nfnetlink.SizeError
	if errors.As(err, &size) && len(ops) > 1 {
		return k.commitParts(ctx, ops)
	}
	if err != nil {
		return k.explainCommit(err)
	}
	k.places.begun = true
	k.ops.Add(w.count)
	w.slots.settle(k.slots)
	k.settleFills(&counts)
	for i := range ops {
		switch {
		case ops[i].Key.kind != kindChain && ops[i].Key.kind != kindSet:
		case ops[i].Kind == backends.Remove:
			k.book.forget(ops[i].Key, ops[i].Value)
		default:
			k.book.settle(ops[i].Key, ops[i].Value)
		}
	}
	return k.purge(ctx, w.purges)
}

// commitParts makes several transactions out of one that exceeds the send
// buffer, as it may in an unprivileged user namespace. The order of the
// operations keeps every state between them consistent.
func (k *kernel) commitParts(ctx context.Context, ops []op) error {
	half := len(ops) / 2
	return backends.CommitBoth(ctx, k.commit, ops[:half], ops[half:])
}

// explainCommit is explain for a commit: where others have just changed the tables, ENOENT
// says that they removed an object, and not that the kernel lacks a feature.
func (k *kernel) explainCommit(err error) error {
	if errors.Is(err, unix.ENOENT) && k.monitor.Noticed() {
		return fmt.Errorf("nftables: %w: %w: %w", proxy.ErrDataplaneLost, backends.ErrConflict, err)
	}
	return k.explain(err)
}

// explain puts an error of the kernel in terms that callers can act on.
func (k *kernel) explain(err error) error {
	var refused *nfnetlink.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("nftables: %w: %w", backends.ErrExhausted, err)
	case errors.Is(err, nfnetlink.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	case errors.Is(err, unix.EPERM) && errors.As(err, &refused) && refused.Table.Name != "" && !strings.HasPrefix(refused.Op, "list"):
		return fmt.Errorf("nftables: %w: table %v belongs to another process (flag owner): %w", backends.ErrUnavailable, refused.Table, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("nftables: %w: %w: CAP_NET_ADMIN is needed in the network namespace: %w", backends.ErrUnavailable, proxy.ErrUnsupported, err)
	case !errors.As(err, &refused):
		return err
	}
	return explainRefusal(refused, err)
}

// explainRefusal does so for what the kernel refused.
func explainRefusal(refused *nfnetlink.Error, err error) error {
	switch {
	case strings.HasPrefix(refused.Op, "add rule") && (refused.Errno == unix.ENOENT || refused.Errno == unix.EOPNOTSUPP):
		return fmt.Errorf("nftables: %w: the kernel lacks something that the rules of chain %s need: %w", proxy.ErrUnsupported, refused.Object, err)
	case refused.Errno == unix.ENOENT || refused.Errno == unix.ENFILE:
		// All that the operation refers to was found or made before. So others have
		// removed it, and perhaps more, or have filled a set that had room.
		return fmt.Errorf("nftables: %w: %w: %w", proxy.ErrDataplaneLost, backends.ErrConflict, err)
	case refused.Errno == unix.EEXIST || refused.Errno == unix.EBUSY:
		return fmt.Errorf("nftables: %w: %w", backends.ErrConflict, err)
	case refused.Errno == unix.EOPNOTSUPP || refused.Errno == unix.EAFNOSUPPORT || refused.Errno == unix.EPROTONOSUPPORT:
		return fmt.Errorf("nftables: %w: %w", proxy.ErrUnsupported, err)
	}
	return fmt.Errorf("nftables: %w", err)
}

// tag is what a rule says of itself: the definition of its chain, which rule of how
// many it is, and the chain's name when it was written.
type tag struct {
	hash  value
	chain uint32
	i, n  uint16
}

const tagSize = 16

// append appends a tag as user data.
func (t tag) append(b []byte) []byte {
	var text [tagSize]byte
	binary.BigEndian.PutUint64(text[:], uint64(t.hash))
	binary.BigEndian.PutUint32(text[8:], t.chain)
	binary.BigEndian.PutUint16(text[12:], t.i)
	binary.BigEndian.PutUint16(text[14:], t.n)
	return nfnetlink.AppendTag(b, text[:])
}

func parseTag(s string) (t tag, ok bool) {
	if len(s) != tagSize {
		return tag{}, false
	}
	b := []byte(s)
	return tag{
		hash: value(binary.BigEndian.Uint64(b)), chain: binary.BigEndian.Uint32(b[8:]),
		i: binary.BigEndian.Uint16(b[12:]), n: binary.BigEndian.Uint16(b[14:]),
	}, true
}

// chainTag stands for the name of a chain in the tags of its rules.
func chainTag(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // a hash does not fail
	return h.Sum32()
}
