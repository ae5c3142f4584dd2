package xtables

import (
	"cmp"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
)

// script is the input of iptables-restore for some operations.
//
// iptables-restore commits one table after the other. No packet must leave the node
// untranslated in between. So rules of table filter that refuse packets are added before
// rules of table nat that translate them are removed, and are removed after rules of table
// nat have been added: first additions to filter, then nat, then removals from filter. If
// nat only gets additions, it is first, because the other order makes a first load slow in
// the flavour that uses nf_tables. Table mangle, which neither refuses nor translates, is
// before all others.
//
// New chains, which no packet reaches yet, may be committed ahead of everything else, in pieces.
type script struct {
	text []byte
	// piece is about how many bytes of new chains are in one commit; 0 is all.
	piece int
	// isAhead is true while new chains are written that may be cut into pieces; pieceStart is where the
	// text of the current piece begins.
	isAhead    bool
	pieceStart int
	commits    int
	// rules counts rules and chains that are written or removed.
	rules uint64
	// written counts the rules that are written, by table.
	written [tables]int
}

// pieceSize is for the flavour that uses nf_tables: its iptables-restore needs 15 times as much memory
// as the text of a commit has bytes. In the legacy flavour each commit copies the whole table.
const pieceSize = 256 << 10

// Script returns the input of iptables-restore --noflush for some operations.
func Script(ops []Op) string { return string(newScript(ops, 0).text) }

// newScript writes a script with pieces of a size.
func newScript(ops []Op, piece int) *script {
	var marks, before, after []Op
	during := make([]Op, 0, len(ops)) // nearly all of them
	for i := range ops {
		o := &ops[i]
		switch {
		case o.Key.Table == Mangle:
			marks = append(marks, *o)
		case o.Key.Table == NAT:
			during = append(during, *o)
		case o.Kind == backends.Remove, o.Key.Rule == "" && o.Key.Back, o.Key.Rule != "" && o.Kind == backends.Replace:
			after = append(after, *o)
		default:
			before = append(before, *o)
		}
	}
	s := &script{text: make([]byte, 0, textSize(ops)), piece: piece}
	s.section(Mangle, marks)
	if slices.ContainsFunc(during, func(o Op) bool { return o.Kind != backends.Add }) {
		s.divide(Filter, before)
		s.divide(NAT, during)
	} else {
		s.divide(NAT, during)
		s.divide(Filter, before)
	}
	s.section(Filter, after)
	return s
}

// divide writes the operations on one table. If they are long, it commits new chains ahead, in pieces.
func (s *script) divide(t Table, ops []Op) {
	if s.piece == 0 || textSize(ops) <= s.piece {
		s.section(t, ops)
		return
	}
	isNew := map[string]bool{}
	for i := range ops {
		if o := &ops[i]; o.Key.Rule == "" && o.Kind == backends.Add {
			isNew[o.Key.Chain] = true
		}
	}
	ahead := make([]Op, 0, len(ops)) // nearly all of them
	var rest []Op
	for i := range ops {
		if o := &ops[i]; o.Kind == backends.Add && isNew[o.Key.Chain] {
			ahead = append(ahead, *o)
		} else {
			rest = append(rest, *o)
		}
	}
	s.isAhead = true
	s.section(t, ahead)
	s.isAhead = false
	s.section(t, rest)
}

// cut begins another piece before a rule of a new chain, if the current one is large enough. The
// first piece has made all the chains.
func (s *script) cut(t Table) {
	if s.isAhead && len(s.text)-s.pieceStart >= s.piece {
		s.commit()
		s.write("*", t.String())
	}
}

// commit writes the line that commits a section.
func (s *script) commit() {
	s.write("COMMIT")
	s.commits++
	s.pieceStart = len(s.text)
}

// textSize returns an upper bound of the length of a script for some operations.
func textSize(ops []Op) int {
	size := 64
	for i := range ops {
		o := &ops[i]
		size += 2*len(o.Key.Chain) + len(o.Key.Rule) + 16
		if o.Key.Rule == "" && o.Kind != backends.Remove {
			size += len(o.Value) + strings.Count(o.Value, "\n")*(len(o.Key.Chain)+4)
		}
	}
	return size
}

// section writes the operations on one table, in one commit unless they only make chains. It sorts
// chains by name, an order that iptables reads much faster than any other.
func (s *script) section(t Table, ops []Op) {
	if len(ops) == 0 {
		return
	}
	var chains, rules []*Op
	for i := range ops {
		if o := &ops[i]; o.Key.Rule == "" {
			chains = append(chains, o)
		} else {
			rules = append(rules, o)
		}
	}
	slices.SortFunc(chains, func(a, b *Op) int { return cmp.Compare(a.Key.Chain, b.Key.Chain) })
	s.write("*", t.String())
	for _, o := range chains {
		s.rules++
		if o.Kind == backends.Add { // this line makes a chain, or empties it
			s.write(":", o.Key.Chain, " - [0:0]")
		} else { // iptables refuses this one if another program has renamed the chain
			s.write("-F ", o.Key.Chain)
		}
	}
	for _, o := range chains {
		if o.Kind != backends.Remove {
			s.content(o)
		}
	}
	s.single(rules, chains)
	for _, o := range chains {
		if o.Kind == backends.Remove {
			s.write("-X ", o.Key.Chain)
		}
	}
	s.commit()
}

// content writes the rules of a chain.
func (s *script) content(o *Op) {
	for rule := range strings.Lines(o.Value) {
		s.cut(o.Key.Table)
		s.rules++
		s.written[o.Key.Table]++
		s.text = append(s.text, "-A "...)
		s.text = append(s.text, o.Key.Chain...)
		s.text = append(s.text, ' ')
		s.text = append(s.text, rule...)
	}
}

// single writes the operations on rules of open chains: rules for the front, in reverse
// order because each is inserted first; rules for the back; and removals. A rule that is
// replaced is removed before the new one is added. In a new chain, which is empty, rules for
// the front are appended, which takes far less time.
func (s *script) single(rules, chains []*Op) {
	isNew := func(chain string) bool {
		_, found := slices.BinarySearchFunc(chains, chain, func(o *Op, name string) int { return cmp.Compare(o.Key.Chain, name) })
		return found
	}
	var front, back, removed []*Op
	for _, o := range rules {
		switch {
		case o.Kind == backends.Remove && isNew(o.Key.Chain): // emptying the chain has removed it
		case o.Kind == backends.Remove:
			removed = append(removed, o)
		case o.Key.Back:
			back = append(back, o)
		case isNew(o.Key.Chain):
			s.rule("-A ", o)
		default:
			for rule := range strings.Lines(o.Value) {
				s.rules++
				s.write("-D ", o.Key.Chain, " ", strings.TrimSuffix(rule, "\n"))
			}
			front = append(front, o)
		}
	}
	for _, o := range slices.Backward(front) {
		s.rule("-I ", o)
	}
	for _, o := range back {
		s.rule("-A ", o)
	}
	for _, o := range removed {
		s.rule("-D ", o)
	}
}

func (s *script) rule(how string, o *Op) {
	s.cut(o.Key.Table)
	s.rules++
	if o.Kind != backends.Remove {
		s.written[o.Key.Table]++
	}
	s.write(how, o.Key.Chain, " ", o.Key.Rule)
}

func (s *script) write(parts ...string) {
	for _, part := range parts {
		s.text = append(s.text, part...)
	}
	s.text = append(s.text, '\n')
}
