package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// listing parses the output of iptables-save in pieces, and keeps the chains and rules of an
// identity.
type listing struct {
	names Names
	existing
	// ended are chains of the kernel after a foreign rule that ends the traversal of all packets.
	ended map[chainRef]bool
	// table is the table of the current line, if it is one that is used.
	table   Table
	inTable bool
	// rest is the start of a line that is not complete yet.
	rest []byte
	err  error
}

func newListing(n Names) *listing {
	return &listing{
		names: n, ended: map[chainRef]bool{},
		existing: existing{chains: saved{}, jumps: saved{}, late: map[chainRef]bool{}, used: map[chainRef]bool{}},
	}
}

// Write parses a piece. It always accepts all of it, so that the program does not block;
// end returns the error.
func (l *listing) Write(piece []byte) (int, error) {
	for rest := piece; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte{'\n'})
		l.rest = append(l.rest, line...)
		if ended {
			l.line(string(l.rest))
			l.rest = l.rest[:0]
		}
		rest = after
	}
	return len(piece), nil
}

// end returns what was found in the whole output.
func (l *listing) end() (*existing, error) {
	l.line(string(l.rest))
	return &l.existing, l.err
}

// line parses a line. A comment of another program with a newline makes several lines of a rule; only the
// first one begins like a rule.
func (l *listing) line(line string) {
	switch {
	case l.inTable && strings.HasPrefix(line, "-A "):
		l.rule(line)
	case strings.HasPrefix(line, "# Table `") && strings.Contains(line, "is incompatible, use 'nft' tool"):
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "# Table `"), "'")
		if _, isUsed := l.names.tableNamed(name); isUsed {
			l.err = fmt.Errorf("%w: nft list table ip %s, or ip6, shows them", errIncompatible, name)
		}
	case strings.HasPrefix(line, "*"):
		l.table, l.inTable = l.names.tableNamed(line[1:])
	case l.inTable && strings.HasPrefix(line, ":"):
		name, _, _ := strings.Cut(line[1:], " ")
		if l.names.Owns(l.table, name) {
			l.chains[chainRef{l.table, name}] = nil
		}
	}
}

func (l *listing) rule(line string) {
	chain, rule, _ := strings.Cut(strings.TrimPrefix(line, "-A "), " ")
	ref := chainRef{l.table, chain}
	if _, exists := l.chains[ref]; exists {
		l.chains[ref] = append(l.chains[ref], rule)
		return
	}
	isOwn := l.names.ownsComment(rule)
	if isHook(chain) {
		isOwn = l.names.ownsJump(l.table, rule)
		l.ended[ref] = l.ended[ref] || !isOwn && endsTraversal(rule)
	}
	if isOwn {
		l.jumps[ref] = append(l.jumps[ref], rule)
		l.late[ref] = l.late[ref] || l.ended[ref]
	} else if to := rule[strings.LastIndex(rule, " ")+1:]; l.names.Owns(l.table, to) {
		l.used[chainRef{l.table, to}] = true
	}
}

// errIncompatible marks tables that only the program nft can read.
var errIncompatible = errors.New("another program has rules in a table of iptables that iptables cannot read")
