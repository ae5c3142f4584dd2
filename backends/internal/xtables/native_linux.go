package xtables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// native reads and removes chains of the flavour nft in nf_tables itself, without programs: other
// programs can add rules that iptables does not list as they are.
type native struct {
	conn   *nfnetlink.Conn
	family nfnetlink.Family
	names  Names
}

func (n *native) table(t Table) nfnetlink.Table {
	return nfnetlink.Table{Family: n.family, Name: t.String()}
}

// RemoveNFT removes the chains of a consumer that has ended, in the flavour nft and both IP families,
// in one transaction, with all rules that lead to them. It needs no program. Without such chains it
// writes nothing.
func RemoveNFT(ctx context.Context, conn *nfnetlink.Conn, names Names) error {
	var b nfnetlink.Batch
	for _, family := range [...]nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		n := &native{conn: conn, family: family, names: names}
		for _, t := range names.tables() {
			if err := n.addRemovals(ctx, &b, t); err != nil {
				return err
			}
		}
	}
	return conn.Commit(ctx, &b)
}

// addRemovals adds the removals of the chains in a table, after the removals of rules that lead to them.
func (n *native) addRemovals(ctx context.Context, b *nfnetlink.Batch, t Table) error {
	exists, err := n.existIn(ctx, t)
	if err != nil || !exists {
		return err
	}
	own, jumps, err := n.read(ctx, t)
	for _, j := range jumps {
		b.DelRule(n.table(t), j.from, j.handle)
	}
	for chain := range own {
		b.FlushChain(n.table(t), chain)
	}
	for chain := range own {
		b.DelChain(n.table(t), chain)
	}
	return err
}

// existIn reports whether a table has one of the chains that exist whatever the service ports are. Unlike
// a list of the chains, that is known also while other programs commit all the time.
func (n *native) existIn(ctx context.Context, t Table) (bool, error) {
	for _, chain := range n.names.Chains[t] {
		_, err := n.conn.Chain(ctx, n.table(t), n.names.Prefix+chain)
		if !errors.Is(err, unix.ENOENT) {
			return err == nil, err
		}
	}
	return false, nil
}

// jump is a rule of a chain of the kernel or of another program that leads to a chain of the identity.
type jump struct {
	from, to string
	handle   uint64
	// isOwn is true if the rule is an own one by [Names.ownsJump].
	isOwn bool
}

// read returns the names of the identity's chains in a table, and the jumps to them.
func (n *native) read(ctx context.Context, t Table) (own map[string]bool, jumps []jump, err error) {
	var chains []nfnetlink.Chain
	if err := n.conn.Chains(ctx, n.table(t), nfnetlink.Collect(&chains)); err != nil {
		return nil, nil, err
	}
	own = map[string]bool{}
	for i := range chains {
		if n.names.Owns(t, chains[i].Name) {
			own[chains[i].Name] = true
		}
	}
	err = n.conn.Rules(ctx, n.table(t), nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { jumps = nil },
		Each: func(r *nfnetlink.RuleInfo) error {
			if j := n.readJump(t, r); own[j.to] && !own[j.from] {
				jumps = append(jumps, j)
			}
			return nil
		},
	})
	return own, jumps, err
}

// readJump reads where a rule leads. What it writes of the rule as iptables would is enough for
// [Names.ownsJump].
func (n *native) readJump(t Table, r *nfnetlink.RuleInfo) jump {
	j := jump{from: r.Chain, handle: r.Handle}
	var text strings.Builder
	for s := range r.Steps() {
		switch string(s.Name) {
		case "counter":
		case "immediate":
			verdict, to, _ := s.Verdict()
			j.to = string(to)
			text.WriteString(map[bool]string{true: "-j ", false: "-g "}[verdict == nfnetlink.VerdictJump] + j.to)
		case "match":
			text.WriteString(matchText(&s))
		default:
			text.WriteString("-m " + string(s.Name) + " ")
		}
	}
	j.isOwn = n.names.ownsJump(t, text.String())
	return j
}

// matchText returns a match as iptables prints it, as far as own jumps may have it: a comment, or the state of
// connections.
func matchText(s *nfnetlink.Step) string {
	name, _, _ := strings.Cut(string(s.Bytes(unix.NFTA_MATCH_NAME)), "\x00")
	switch name {
	case "comment":
		comment, _, _ := strings.Cut(string(s.Bytes(unix.NFTA_MATCH_INFO)), "\x00")
		return `-m comment --comment "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(comment) + `" `
	case "conntrack":
		return "-m conntrack --ctstate ANY "
	}
	return "-m " + name + " "
}

// wake makes dormant tables active, and returns how many: iptables lists and writes them like others, but no
// packet passes their rules. For another flavour, n may be nil.
func (n *native) wake(ctx context.Context) (woken uint64, err error) {
	if n == nil {
		return 0, nil
	}
	var all []nfnetlink.TableInfo
	if err := n.conn.Tables(ctx, n.family, nfnetlink.Collect(&all)); err != nil {
		return 0, err
	}
	var b nfnetlink.Batch
	for _, info := range all {
		if t, isUsed := n.names.tableNamed(info.Name); isUsed && info.IsDormant() {
			b.WakeTable(n.table(t))
			woken++
		}
	}
	return woken, n.conn.Commit(ctx, &b)
}

// find reads the names of the identity's chains and the jumps to them.
func (n *native) find(ctx context.Context) (*existing, error) {
	e := &existing{chains: saved{}, used: map[chainRef]bool{}, isUnread: true, handles: map[chainRef][]uint64{}}
	for _, t := range n.names.tables() {
		own, jumps, err := n.read(ctx, t)
		if err != nil {
			return nil, err
		}
		for name := range own {
			e.chains[chainRef{t, name}] = nil
		}
		for _, j := range jumps {
			if isHook(j.from) && j.isOwn {
				e.handles[chainRef{t, j.from}] = append(e.handles[chainRef{t, j.from}], j.handle)
			} else {
				e.used[chainRef{t, j.to}] = true
			}
		}
	}
	return e, nil
}

// removeJumps removes own jumps from the kernel's own chains. Without any, n may be nil.
func (n *native) removeJumps(ctx context.Context, handles map[chainRef][]uint64) error {
	if len(handles) == 0 {
		return nil
	}
	var b nfnetlink.Batch
	for ref, all := range handles {
		for _, handle := range all {
			b.DelRule(n.table(ref.table), ref.name, handle)
		}
	}
	if err := n.conn.Commit(ctx, &b); err != nil {
		return fmt.Errorf("%w: iptables: removing jumps that new ones have replaced: %w", proxy.ErrDataplaneLost, err)
	}
	return nil
}
