package iptables

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
)

// script is the input of iptables-restore for some operations.
//
// Each table is committed for itself. So that no packet slips through between
// two of them, what refuses packets is there before what translates them goes,
// and goes after that has come: additions to table filter are first, table nat
// follows, and removals from filter are last. Where nothing in table nat gives
// way, it comes first: the other way round is slow, for a first load, in the
// flavour that uses nf_tables.
type script struct {
	text []byte
	// sections are the tables in the order in which they are committed.
	sections []section
	lines    int
	// rules counts rules and chains that are written or removed.
	rules uint64
}

// section is what one commit of a table does.
type section struct {
	// end is the number of the line that commits it, from 1.
	end int
	ops []op
}

// newScript writes a script. Operations that cannot be written are its error.
func newScript(ops []op) (*script, error) {
	var before, after []op
	during := make([]op, 0, len(ops)) // nearly all of them
	for i := range ops {
		o := &ops[i]
		switch {
		case o.Key.table == refused && o.Kind == backends.Remove:
		case o.Key.table == refused:
			return nil, errors.New(o.Value)
		case o.Key.table == nat:
			during = append(during, *o)
		case o.Kind == backends.Remove, o.Key.rule == "" && o.Key.back:
			after = append(after, *o)
		default:
			before = append(before, *o)
		}
	}
	s := &script{text: make([]byte, 0, textSize(ops))}
	if slices.ContainsFunc(during, func(o op) bool { return o.Kind != backends.Add }) {
		s.section(filter, before)
		s.section(nat, during)
	} else {
		s.section(nat, during)
		s.section(filter, before)
	}
	s.section(filter, after)
	return s, nil
}

// textSize is how long a script for some operations gets, at most.
func textSize(ops []op) int {
	size := 64
	for i := range ops {
		o := &ops[i]
		size += 2*len(o.Key.chain) + len(o.Key.rule) + 16
		if o.Key.rule == "" && o.Kind != backends.Remove {
			size += len(o.Value) + strings.Count(o.Value, "\n")*(len(o.Key.chain)+4)
		}
	}
	return size
}

// section writes what is to be done in a table. Chains are in the order of their
// names, which iptables takes in far sooner than any other order.
func (s *script) section(t table, ops []op) {
	if len(ops) == 0 {
		return
	}
	var chains, rules []*op
	for i := range ops {
		if o := &ops[i]; o.Key.rule == "" {
			chains = append(chains, o)
		} else {
			rules = append(rules, o)
		}
	}
	slices.SortFunc(chains, func(a, b *op) int { return cmp.Compare(a.Key.chain, b.Key.chain) })
	s.write("*", t.String())
	for _, o := range chains { // this makes a chain, and empties one that is there
		s.rules++
		s.write(":", o.Key.chain, " - [0:0]")
	}
	for _, o := range chains {
		if o.Kind != backends.Remove {
			s.content(o)
		}
	}
	s.single(rules, chains)
	for _, o := range chains {
		if o.Kind == backends.Remove {
			s.write("-X ", o.Key.chain)
		}
	}
	s.write("COMMIT")
	s.sections = append(s.sections, section{end: s.lines, ops: ops})
}

// content writes the rules of a chain.
func (s *script) content(o *op) {
	for rule := range strings.Lines(o.Value) {
		s.rules++
		s.lines++
		s.text = append(s.text, "-A "...)
		s.text = append(s.text, o.Key.chain...)
		s.text = append(s.text, ' ')
		s.text = append(s.text, rule...)
	}
}

// single writes the operations on rules of open chains: rules for the front, which
// are put there last first, so that they stand in their order; those for the back;
// and removals. Rules that a new one takes the place of go before it comes. At the back of a chain that is new, and so still empty, rules for
// the front stand as well: it takes far less time.
func (s *script) single(rules, chains []*op) {
	isNew := func(chain string) bool {
		_, found := slices.BinarySearchFunc(chains, chain, func(o *op, name string) int { return cmp.Compare(o.Key.chain, name) })
		return found
	}
	var front, back, gone []*op
	for _, o := range rules {
		switch {
		case o.Kind == backends.Remove && isNew(o.Key.chain): // it went with all others
		case o.Kind == backends.Remove:
			gone = append(gone, o)
		case o.Key.back:
			back = append(back, o)
		case isNew(o.Key.chain):
			s.rule("-A ", o)
		default:
			for rule := range strings.Lines(o.Value) {
				s.rules++
				s.write("-D ", o.Key.chain, " ", strings.TrimSuffix(rule, "\n"))
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
	for _, o := range gone {
		s.rule("-D ", o)
	}
}

func (s *script) rule(how string, o *op) {
	s.rules++
	s.write(how, o.Key.chain, " ", o.Key.rule)
}

func (s *script) write(parts ...string) {
	for _, part := range parts {
		s.text = append(s.text, part...)
	}
	s.text = append(s.text, '\n')
	s.lines++
}

// line gives a line of the text, from 1.
func (s *script) line(number int) string {
	for line := range strings.Lines(string(s.text)) {
		if number--; number == 0 {
			return line
		}
	}
	return ""
}

// committed gives the operations that were carried out if the program stopped
// at a line.
func (s *script) committed(line int) []op {
	var done []op
	for _, part := range s.sections {
		if part.end < line {
			done = append(done, part.ops...)
		}
	}
	return done
}
