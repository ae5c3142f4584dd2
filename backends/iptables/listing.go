package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// listing takes in what iptables-save prints, piece by piece, and keeps of it what
// belongs to an identity.
type listing struct {
	names   names
	found   saved
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

func newListing(n names) *listing { return &listing{names: n, found: saved{}} }

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

// end gives what was found, once all has come.
func (l *listing) end() (saved, error) {
	if l.err == nil && len(l.begun) > 0 {
		l.line(string(l.begun))
		l.begun = nil
	}
	for len(l.open) > 0 {
		l.closeFirst()
	}
	if l.err != nil {
		return nil, l.err
	}
	return l.found, nil
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
	l.found.rule(l.table, l.names, chain, rule)
}

func isKnown(name string) bool {
	_, ok := tableNamed(name)
	return ok
}

// errIncompatible marks tables that only the program nft can read.
var errIncompatible = errors.New("another program has rules in a table of iptables that iptables cannot read")
