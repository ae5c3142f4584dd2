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
	// read is how many rules of each of the kernel's own chains have been read.
	read map[chainRef]int
	// table is the table of the current line, if it is one that is used.
	table   Table
	inTable bool
	// begun is the start of a line that is not complete yet.
	begun []byte
	// open are the lines of a rule with quotes that are not closed yet.
	open     []string
	openSize int
	err      error
}

const (
	// longestLine bounds a line in bytes; foreign rules may be long.
	longestLine = 1 << 20
	// longestQuote bounds a rule of several lines in bytes. Comments may contain newlines:
	// the kernel keeps 255 bytes of each comment.
	longestQuote = 4 << 10
)

func newListing(n Names, known knowledge) *listing {
	return &listing{
		names: n, ended: map[chainRef]bool{}, read: map[chainRef]int{},
		existing: existing{chains: saved{}, jumps: saved{}, late: map[chainRef]bool{}, knowledge: known},
	}
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

// end returns what was found in the whole output.
func (l *listing) end() (*existing, error) {
	if l.err == nil && len(l.begun) > 0 {
		l.line(string(l.begun))
		l.begun = nil
	}
	for len(l.open) > 0 {
		l.splitRule()
	}
	return &l.existing, l.err
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
	case l.inTable && strings.HasPrefix(line, ":"):
		name, _, _ := strings.Cut(line[1:], " ")
		if l.names.Owns(l.table, name) {
			l.chains[chainRef{l.table, name}] = nil
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
	if _, exists := l.chains[ref]; exists {
		l.chains[ref] = append(l.chains[ref], rule)
		return
	}
	isOwn := l.names.ownsComment(rule)
	if isHook(chain) {
		if at := l.read[ref]; at < len(l.hooks[ref]) && l.hooks[ref][at].isMisprinted {
			rule = "" // what is printed says nothing
		}
		l.read[ref]++
		isOwn = l.names.ownsJump(l.table, rule)
		l.ended[ref] = l.ended[ref] || !isOwn && endsTraversal(rule)
	}
	if isOwn {
		l.jumps[ref] = append(l.jumps[ref], rule)
		l.late[ref] = l.late[ref] || l.ended[ref]
	}
}

func (l *listing) isUsed(table string) bool {
	_, ok := l.names.tableNamed(table)
	return ok
}

// errIncompatible marks tables that only the program nft can read.
var errIncompatible = errors.New("another program has rules in a table of iptables that iptables cannot read")
