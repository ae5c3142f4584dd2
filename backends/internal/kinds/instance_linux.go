package kinds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Instance is a running backend in the network namespace in which it was opened. Its methods may be
// called from any goroutine, none after Close.
type Instance struct {
	identity backends.Identity
	// own are the kinds of the instance: one, or the flavours of iptables that its IP families have.
	own []Kind
	// isDefault says that the identity has the default name, so that the instance succeeds ended
	// instances of other kinds.
	isDefault bool

	mu sync.Mutex
	// sockets show that the instance runs; the first one has no name, and finds others.
	sockets []int
	// nft is nil if the kernel has no netlink interface of netfilter, and so no tables.
	nft *nfnetlink.Conn
	at  *netns.NS
	// legacy removes the chains of the legacy flavour. It is nil if the system lacks the programs.
	legacy *xtables.Backend
	// running are the other kinds that ran when the instance looked last.
	running map[Kind]bool
}

// Open returns an instance with a complete identity, in the network namespace of the calling thread.
func Open(identity backends.Identity, own ...Kind) (*Instance, error) {
	i := &Instance{identity: identity, own: own, isDefault: identity.Name == own[0].Defaults().Name, running: map[Kind]bool{}}
	if err := i.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", proxy.ErrUnsupported, err), i.Close())
	}
	return i, nil
}

func (i *Instance) open() (err error) {
	if i.nft, err = nfnetlink.Open(); err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) {
		return err
	}
	if i.at, err = netns.Current(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("the network namespace: %w", err)
	}
	if !i.isDefault {
		return nil
	}
	if i.legacy, err = openLegacy(); err != nil {
		return err
	}
	if err := i.addSocket(); err != nil {
		return err
	}
	for _, k := range i.own {
		if err := i.addSocket(); err != nil {
			return err
		}
		if err := show(i.sockets[len(i.sockets)-1], k); err != nil {
			return err
		}
	}
	return nil
}

func (i *Instance) addSocket() error {
	fd, err := openSocket()
	if err == nil {
		i.sockets = append(i.sockets, fd)
	}
	return err
}

// Close ends the instance. Objects of the kernel stay.
func (i *Instance) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var errs []error
	for _, fd := range i.sockets {
		errs = append(errs, unix.Close(fd))
	}
	i.sockets, i.isDefault = nil, false
	if i.at != nil {
		errs = append(errs, i.at.Close())
		i.at = nil
	}
	if i.legacy != nil {
		errs = append(errs, i.legacy.Close())
		i.legacy = nil
	}
	if i.nft != nil {
		errs = append(errs, i.nft.Close())
		i.nft = nil
	}
	return errors.Join(errs...)
}

// Succeed removes what ended instances of other kinds have left under their default identities. A
// backend calls it after each Apply with the result, which Succeed returns: only a full Apply that
// has programmed the Services removes anything, so that connections find the old objects or the
// new ones. If that fails, the next full Apply tries again.
func (i *Instance) Succeed(ctx context.Context, old proxy.Snapshot, result error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, some := errors.AsType[proxy.PortErrors](result); i.nft == nil || !old.IsZero() || result != nil && !some {
		return result
	}
	if err := i.removeOthers(ctx); err != nil {
		return fmt.Errorf("%w: removing what another backend has left: %w", proxy.ErrDataplaneLost, errors.Join(err, result))
	}
	return result
}

func (i *Instance) removeOthers(ctx context.Context) error {
	if !i.isDefault {
		return nil
	}
	for _, k := range i.others() {
		if i.running[k] = mayRun(i.sockets[0], k); i.running[k] {
			continue
		}
		if err := i.remove(ctx, k); err != nil {
			return fmt.Errorf("kind %s: %w", k, err)
		}
	}
	return nil
}

// Ended reports whether an instance of another kind, which ran when this one looked last, has ended.
// A full Apply then removes what it has left.
func (i *Instance) Ended() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.isDefault && slices.ContainsFunc(i.others(), func(k Kind) bool { return i.running[k] && !mayRun(i.sockets[0], k) })
}

// others returns the kinds that are not the instance's own.
func (i *Instance) others() []Kind {
	return slices.DeleteFunc(all(), func(k Kind) bool { return slices.Contains(i.own, k) })
}
