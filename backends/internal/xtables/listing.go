package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// listing parses the output of iptables-save in pieces, and keeps the chains and rules of an
// identity.
type listing struct {
	names Names
	found saved
	// unreachable are own jumps that no packet reaches, with all their duplicates, and what
	// others has.
	unreachable saved
	hooks       map[chainRef]*hook
	others      others
	// isForeign is as [Family.isForeign]; without it, each other chain counts as foreign.
	isForeign func(t Table, rule string) bool
	position
	// begun is the start of a line that is not complete yet.
	begun []byte
	// open are the lines of a rule with quotes that are not closed yet.
	open     []string
	openSize int
	err      error
}

// position is where in the output a line is.
type position struct {
	table   Table
	inTable bool
	// isUnusedMangle is true in table mangle if the identity has no rules there. Yet kube-proxy
	// has a canary there, which stays when an identity adopts its chains.
	isUnusedMangle bool
}

const (
	// longestLine bounds a line in bytes; foreign rules may be long.
	longestLine = 1 << 20
	// longestQuote bounds a rule of several lines in bytes. Comments may contain newlines:
	// the kernel keeps 255 bytes of each comment.
	longestQuote = 4 << 10
)

// hook is one of the kernel's own chains.
type hook struct {
	hidden hiddenRules
	// count is how many rules have been read.
	count int
	// isEnded is true after a foreign rule that ends the traversal of all packets.
	isEnded bool
}

// hiddenRules are the positions, from 0, of rules that iptables prints wrongly or not at
// all, and the count of all rules of the chain.
type hiddenRules struct {
	count int
	at    []int
}

func newListing(n Names, hidden map[chainRef]hiddenRules) *listing {
	l := &listing{names: n, found: saved{}, unreachable: saved{}, hooks: map[chainRef]*hook{}, others: others{}}
	for ref, h := range hidden {
		l.hooks[ref] = &hook{hidden: h}
	}
	return l
}

// Write parses a piece. It always accepts all of it, so that the program does not block;
// end returns the error.
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

// end returns what was found in the whole output, and separately the own jumps after a
// foreign rule that ends the traversal of all packets.
func (l *listing) end() (found, unreachable saved, err error) {
	if l.err == nil && len(l.begun) > 0 {
		l.line(string(l.begun))
		l.begun = nil
	}
	for len(l.open) > 0 {
		l.splitRule()
	}
	for ref, h := range l.hooks {
		if h.hidden.count > 0 && h.count != h.hidden.count && l.err == nil {
			l.err = fmt.Errorf("chain %s of table %v was changed while it was read", ref.name, ref.table)
		}
	}
	if l.err != nil {
		return nil, nil, l.err
	}
	for ref := range l.unreachable {
		l.moveUnreachable(ref)
	}
	l.others.addTo(l.unreachable)
	return l.found, l.unreachable, nil
}

// moveUnreachable treats all duplicates of a jump as unreachable if one is: a removal by
// text may remove any of them.
func (l *listing) moveUnreachable(ref chainRef) {
	unreachable := slices.Clone(l.unreachable[ref])
	l.found[ref] = slices.DeleteFunc(l.found[ref], func(rule string) bool {
		is := slices.Contains(unreachable, rule)
		if is {
			l.unreachable[ref] = append(l.unreachable[ref], rule)
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
		l.continueRule(line)
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
		if name, _, _ := strings.Cut(strings.TrimPrefix(line, "# Table `"), "'"); l.isUsed(name) {
			l.err = fmt.Errorf("%w: nft list table ip %s, or ip6, shows them", errIncompatible, name)
		}
	case strings.HasPrefix(line, "*"):
		l.table, l.inTable = l.names.tableNamed(line[1:])
		l.isUnusedMangle = !l.inTable && line[1:] == Mangle.String()
	case l.isUnusedMangle && strings.HasPrefix(line, ":"+l.names.Canary()+" "):
		l.others.at(chainRef{Mangle, l.names.Canary()}).isCanary = true
	case l.inTable && strings.HasPrefix(line, ":"):
		name, _, _ := strings.Cut(line[1:], " ")
		if l.names.Owns(l.table, name) {
			l.found[chainRef{l.table, name}] = nil
		}
	}
}

// continueRule adds a line to a rule of several lines.
func (l *listing) continueRule(line string) {
	l.open, l.openSize = append(l.open, line), l.openSize+1+len(line)
	if whole := strings.Join(l.open, "\n"); isWhole(whole) {
		l.open = l.open[:0]
		l.rule(whole)
		return
	}
	if l.openSize > longestQuote {
		l.splitRule()
	}
}

// splitRule parses a rule whose quotes are never closed: its first line is a rule, and the
// other lines are parsed again.
func (l *listing) splitRule() {
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
		l.follow(l.table, rule, true)
	default:
		l.otherRule(ref, rule)
	}
}

// hookRule reads a rule of one of the kernel's own chains.
func (l *listing) hookRule(ref chainRef, rule string) {
	h := l.hooks[ref]
	if h == nil {
		h = &hook{}
		l.hooks[ref] = h
	}
	h.count++
	isOurs := l.names.ownsJump(ref.table, rule)
	l.follow(ref.table, rule, isOurs)
	switch {
	case slices.Contains(h.hidden.at, h.count-1):
	case isOurs && h.isEnded:
		l.unreachable[ref] = append(l.unreachable[ref], rule)
	case isOurs:
		l.found[ref] = append(l.found[ref], rule)
	default:
		h.isEnded = h.isEnded || endsTraversal(rule)
	}
}

func (l *listing) isUsed(table string) bool {
	_, ok := l.names.tableNamed(table)
	return ok
}

// errIncompatible marks tables that only the program nft can read.
var errIncompatible = errors.New("another program has rules in a table of iptables that iptables cannot read")
