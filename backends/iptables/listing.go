package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// listing takes in what iptables-save prints, piece by piece, and keeps of it what
// belongs to an identity.
type listing struct {
	names names
	found saved
	// dead are jumps of ours that no packet comes to, with all their copies.
	dead    saved
	hooks   map[chainRef]*hook
	table   table
	inTable bool
	// begun is a line of which the end has not come yet.
	begun []byte
	// open are the lines of a rule with quotes that have not ended yet.
	open     []string
	openSize int
	err      error
}

const (
	// longestLine bounds a line; those of others may be long.
	longestLine = 1 << 20
	// longestQuote bounds a rule that has several lines, which comments may have
	// put there: the kernel keeps 255 bytes of each.
	longestQuote = 4 << 10
)

// hook is one of the kernel's own chains.
type hook struct {
	hidden hiddenRules
	// count is how many rules have been read.
	count int
	// isOver says that a rule of others has decided about all packets.
	isOver bool
}

// hiddenRules are rules of a chain, counted from 0, that are not what is printed of them.
// There are as many rules in all as count says.
type hiddenRules struct {
	count int
	at    []int
}

func newListing(n names, hidden map[chainRef]hiddenRules) *listing {
	l := &listing{names: n, found: saved{}, dead: saved{}, hooks: map[chainRef]*hook{}}
	for ref, h := range hidden {
		l.hooks[ref] = &hook{hidden: h}
	}
	return l
}

// Write takes in a piece. It takes everything, so that the program does not wait for
// somebody to read on; what is wrong is to be asked for at the end.
func (l *listing) Write(piece []byte) (int, error) {
	n := len(piece)
	for l.err == nil {
		line, rest, ended := bytes.Cut(piece, []byte{'\n'})
		if len(l.begun)+len(line) > longestLine {
			l.err = fmt.Errorf("a line is longer than %d bytes", longestLine)
			break
		}
		if !ended {
			l.begun = append(l.begun, line...)
			break
		}
		piece = rest
		if len(l.begun) > 0 {
			line = append(l.begun, line...)
			l.begun = l.begun[:0]
		}
		l.line(string(line))
	}
	return n, nil
}

// end gives what was found, once all has come: and, apart, jumps of ours that stand
// behind a rule of others which decides about all packets.
func (l *listing) end() (found, dead saved, err error) {
	if l.err == nil && len(l.begun) > 0 {
		l.line(string(l.begun))
		l.begun = nil
	}
	for len(l.open) > 0 {
		l.closeFirst()
	}
	for ref, h := range l.hooks {
		if h.hidden.count > 0 && h.count != h.hidden.count && l.err == nil {
			l.err = fmt.Errorf("chain %s of table %v was changed while it was read", ref.name, ref.table)
		}
	}
	if l.err != nil {
		return nil, nil, l.err
	}
	for ref := range l.dead {
		l.bury(ref)
	}
	return l.found, l.dead, nil
}

// bury takes all copies of a jump for dead if one is: which of them is removed by its
// text nobody knows.
func (l *listing) bury(ref chainRef) {
	dead := slices.Clone(l.dead[ref])
	l.found[ref] = slices.DeleteFunc(l.found[ref], func(rule string) bool {
		is := slices.Contains(dead, rule)
		if is {
			l.dead[ref] = append(l.dead[ref], rule)
		}
		return is
	})
	if len(l.found[ref]) == 0 {
		delete(l.found, ref)
	}
}

func (l *listing) line(line string) {
	switch {
	case len(l.open) > 0:
		l.goOn(line)
	case strings.HasPrefix(line, "-A "):
		if !l.inTable {
			return
		}
		if !isWhole(line) {
			l.open, l.openSize = append(l.open, line), len(line)
			return
		}
		l.rule(line)
	case strings.HasPrefix(line, "# Table `") && strings.Contains(line, "is incompatible, use 'nft' tool"):
		if name, _, _ := strings.Cut(strings.TrimPrefix(line, "# Table `"), "'"); isKnown(name) {
			l.err = fmt.Errorf("%w: nft list table ip %s, or ip6, shows them", errIncompatible, name)
		}
	case strings.HasPrefix(line, "*"):
		l.table, l.inTable = tableNamed(line[1:])
	case l.inTable && strings.HasPrefix(line, ":"):
		name, _, _ := strings.Cut(line[1:], " ")
		if l.names.owns(l.table, name) {
			l.found[chainRef{l.table, name}] = nil
		}
	}
}

// goOn goes on with a rule of several lines.
func (l *listing) goOn(line string) {
	l.open, l.openSize = append(l.open, line), l.openSize+1+len(line)
	if whole := strings.Join(l.open, "\n"); isWhole(whole) {
		l.open = l.open[:0]
		l.rule(whole)
		return
	}
	if l.openSize > longestQuote {
		l.closeFirst()
	}
}

// closeFirst takes what began as a rule of several lines for one of one line: what it
// holds only looked like quotes.
func (l *listing) closeFirst() {
	lines := l.open
	l.open = nil
	l.rule(lines[0])
	for _, line := range lines[1:] {
		l.line(line)
	}
}

func (l *listing) rule(line string) {
	chain, rule, _ := strings.Cut(strings.TrimPrefix(line, "-A "), " ")
	ref := chainRef{l.table, chain}
	switch _, exists := l.found[ref]; {
	case isHook(chain):
		l.hookRule(ref, rule)
	case exists:
		l.found[ref] = append(l.found[ref], rule)
	}
}

// hookRule takes note of a rule of one of the kernel's own chains, if it is of interest.
func (l *listing) hookRule(ref chainRef, rule string) {
	h := l.hooks[ref]
	if h == nil {
		h = &hook{}
		l.hooks[ref] = h
	}
	h.count++
	switch isOurs := l.names.ownsJump(ref.table, rule); {
	case slices.Contains(h.hidden.at, h.count-1):
	case isOurs && h.isOver:
		l.dead[ref] = append(l.dead[ref], rule)
	case isOurs:
		l.found[ref] = append(l.found[ref], rule)
	default:
		h.isOver = h.isOver || decides(rule)
	}
}

func isKnown(name string) bool {
	_, ok := tableNamed(name)
	return ok
}

// errIncompatible marks tables that only the program nft can read.
var errIncompatible = errors.New("another program has rules in a table of iptables that iptables cannot read")
