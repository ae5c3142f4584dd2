package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Conn is a connection to nf_tables for a backend that owns tables of certain names. It
// notices commits of other programs to these tables. Its methods must not be called
// concurrently, except for WaitDrift.
type Conn struct {
	// Netlink is the connection itself. Its errors are not translated by [Explain].
	Netlink *nfnetlink.Conn
	// Transact commits a batch as one transaction. Tests replace it to inject faults.
	Transact func(context.Context, *nfnetlink.Batch) error
	// Await is [AwaitPackets]. Tests replace it.
	Await func()
	// monitor is nil if nobody asks about commits of other programs.
	monitor *nfnetlink.Monitor
}

// Over returns a connection over another one, which stays open, for [Conn.RemoveTables]. It does not
// notice commits of other programs.
func Over(conn *nfnetlink.Conn) *Conn {
	return &Conn{Netlink: conn, Transact: conn.Commit, Await: AwaitPackets}
}

// Open connects to the network namespace of the calling thread, which needs CAP_NET_ADMIN for
// all calls. Tables are the names of the backend's tables, in any family. The error wraps
// [proxy.ErrUnsupported].
func Open(tables ...string) (*Conn, error) {
	conn, err := nfnetlink.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	monitor, err := conn.Monitor(tables...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", proxy.ErrUnsupported, err), conn.Close())
	}
	return &Conn{Netlink: conn, Transact: conn.Commit, Await: AwaitPackets, monitor: monitor}, nil
}

// Close ends the connection, and a WaitDrift that is running.
func (c *Conn) Close() error { return errors.Join(c.monitor.Close(), c.Netlink.Close()) }

// Drifted is Drifted of [proxy.Abilities]: it reports whether other programs have committed
// to the tables since Begin, or may have.
func (c *Conn) Drifted(context.Context) bool { return c.monitor.Noticed() }

// WaitDrift is WaitDrift of [proxy.Abilities].
func (c *Conn) WaitDrift(ctx context.Context) error { return c.monitor.Wait(ctx) }

// Begin must be called before the tables are read: each later commit of another program
// counts as drift.
func (c *Conn) Begin() error { return Explain(c.monitor.Begin()) }

// Unchanged reports whether no other program has committed to the tables since Begin.
func (c *Conn) Unchanged() bool { return !c.monitor.Noticed() }

// Commit commits a batch as one transaction. Explain has translated its errors; but after a
// commit of another program, ENOENT means that the program removed an object, and not that
// the kernel lacks a feature. An [nfnetlink.SizeError] means that the batch must be divided.
func (c *Conn) Commit(ctx context.Context, b *nfnetlink.Batch) error {
	err := c.Transact(ctx, b)
	if errors.Is(err, unix.ENOENT) && (c.monitor == nil || c.monitor.Noticed()) {
		return fmt.Errorf("nf_tables: %w: %w: %w", proxy.ErrDataplaneLost, backends.ErrConflict, err)
	}
	return Explain(err)
}

// MustReplace returns the error for objects that cannot be changed in place, so that the
// tables must be replaced.
func MustReplace(what string) error {
	return fmt.Errorf("nf_tables: %w: %s cannot be changed in place", backends.ErrReplace, what)
}

// Listed translates the error of a listing. If commits of other programs interrupted each
// attempt, the tables must be replaced.
func Listed(err error, what string) error {
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		return MustReplace(what + ", whose listing was interrupted each time by commits of other programs,")
	}
	return Explain(err)
}

// Tables returns the tables of a family that have one of some names, oldest first.
func (c *Conn) Tables(ctx context.Context, fam nfnetlink.Family, names ...string) ([]nfnetlink.TableInfo, error) {
	var all, own []nfnetlink.TableInfo
	if err := c.Netlink.Tables(ctx, fam, nfnetlink.Collect(&all)); err != nil {
		return nil, Explain(err)
	}
	for _, t := range all {
		for _, name := range names {
			if t.Name == name {
				own = append(own, t)
			}
		}
	}
	return own, nil
}

// Sets returns the sets of a table without anonymous ones, which are parts of foreign rules
// and are removed with them.
func (c *Conn) Sets(ctx context.Context, t nfnetlink.Table) ([]nfnetlink.SetInfo, error) {
	var all []nfnetlink.SetInfo
	v := nfnetlink.Collect(&all)
	v.Consistent = c.Unchanged
	if err := c.Netlink.Sets(ctx, t, v); err != nil {
		return nil, Listed(err, "the sets")
	}
	var named []nfnetlink.SetInfo
	for _, s := range all {
		if s.Flags&unix.NFT_SET_ANONYMOUS == 0 {
			named = append(named, s)
		}
	}
	return named, nil
}

// Elements visits the elements of a set: it calls begin when a listing starts, also when it
// starts again after a commit of another program, and then each for each element. An element
// is valid only until each returns.
func (c *Conn) Elements(ctx context.Context, t nfnetlink.Table, set string, begin func(), each func(*nfnetlink.Element) error) error {
	v := nfnetlink.Visitor[nfnetlink.Element]{Begin: begin, Each: each, Consistent: c.Unchanged}
	return Listed(c.Netlink.Elements(ctx, t, set, v), "set "+set)
}

// ChainInfo is a chain as it was found.
type ChainInfo struct {
	nfnetlink.Chain
	// Hash is the hash with which the rules were written; 0 if a rule is missing, foreign
	// or out of order.
	Hash uint64
	// Renamed is true if a rule was written for a chain of another name. Rules that lead
	// to a chain still do so after it was renamed.
	Renamed bool
	// Tags are the tags of the rules, in order; "" for a rule without tag.
	Tags []string
}

// Chains lists the chains of a table.
func (c *Conn) Chains(ctx context.Context, t nfnetlink.Table) ([]ChainInfo, error) {
	var rules []nfnetlink.RuleInfo
	ofRules := nfnetlink.Collect(&rules)
	ofRules.Consistent = c.Unchanged
	if err := c.Netlink.Rules(ctx, t, ofRules); err != nil {
		return nil, Listed(err, "the rules")
	}
	tags := map[string][]string{}
	for i := range rules {
		tags[rules[i].Chain] = append(tags[rules[i].Chain], rules[i].Tag())
	}
	var chains []nfnetlink.Chain
	ofChains := nfnetlink.Collect(&chains)
	ofChains.Consistent = func() bool { return c.Unchanged() && nfnetlink.HaveAll(chains, rules) }
	if err := c.Netlink.Chains(ctx, t, ofChains); err != nil {
		return nil, Listed(err, "the chains")
	}
	all := make([]ChainInfo, len(chains))
	for i, chain := range chains {
		hash, renamed := hashOf(tags[chain.Name], nameTag(chain.Name))
		all[i] = ChainInfo{Chain: chain, Hash: hash, Renamed: renamed, Tags: tags[chain.Name]}
	}
	return all, nil
}

// hashOf returns the hash that the tags of all rules of a chain have, or 0, and whether a
// rule was written for a chain of another name.
func hashOf(tags []string, chain uint32) (hash uint64, renamed bool) {
	whole := true
	for at, text := range tags {
		t, ok := parseTag(text)
		renamed = renamed || ok && t.chain != chain
		whole = whole && ok && int(t.i) == at && int(t.n) == len(tags) && (at == 0 || t.hash == hash)
		hash = t.hash
	}
	if !whole {
		hash = 0
	}
	return hash, renamed
}
