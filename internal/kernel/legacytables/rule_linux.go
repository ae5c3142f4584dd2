package legacytables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
)

// Rule is a rule of a chain. Conditions that are inverted are left out.
type Rule struct {
	// Chain is the name of the chain that begins here, if one begins; then the other fields mean nothing.
	// Chains of the kernel itself do not begin with such a rule.
	Chain string
	// Input and Output are the names of interfaces, padded with zeros. A name may end in "+", which
	// stands for any rest.
	Input, Output []byte
	// Protocol is 0 if it does not matter.
	Protocol uint8
	Matches  []Match
	// Verdict is 0 if the target is an extension.
	Verdict Verdict
	// PolicyOf is the kernel's number of the hook (2 is NF_INET_FORWARD) whose built-in chain has the
	// rule as its policy, or -1.
	PolicyOf int
}

// Verdict is what a rule says about packets. Positive verdicts are jumps to chains.
type Verdict int32

// Verdicts.
const (
	Drop   Verdict = -1
	Accept Verdict = -2
)

// Match is an extension that is a condition.
type Match struct {
	Name string
	Info []byte
}

// layout has the offsets of fields of a rule, which is the kernel's struct ipt_entry or ip6t_entry.
type layout struct {
	interfaces int // the name of the input interface, then the name of the output interface
	protocol   int
	inverted   int // bits of inverted conditions
	target     int // the offset of the target, then the size of the rule
	matches    int
}

func layout4() layout {
	return layout{interfaces: 16, protocol: 80, inverted: 83, target: 88, matches: 112}
}

func layout6() layout {
	return layout{interfaces: 64, protocol: 128, inverted: 132, target: 140, matches: 168}
}

// Sizes of a name of an interface, and of the headers of matches and targets, which have a size, a name,
// and a revision.
const (
	nameSize      = 16
	extensionSize = 32
	extensionName = 2
)

// errorTarget is the target of rules at which chains begin, and of the last rule of a table: no packet gets there.
const errorTarget = "ERROR"

var errMalformed = errors.New("the kernel's table of iptables has an unknown form")

// read reads all rules of a table. policies are the offsets of the policies of the hooks.
func (l layout) read(table []byte, policies []uint32) (all []Rule, err error) {
	for offset := 0; offset < len(table); {
		rest := table[offset:]
		if len(rest) < l.matches {
			return nil, errMalformed
		}
		target, size := int(binary.NativeEndian.Uint16(rest[l.target:])), int(binary.NativeEndian.Uint16(rest[l.target+2:]))
		if target < l.matches || size < target+extensionSize || size > len(rest) {
			return nil, errMalformed
		}
		r, err := l.rule(rest[:size], target)
		if err != nil {
			return nil, err
		}
		r.PolicyOf = slices.Index(policies, uint32(offset))
		all = append(all, r)
		offset += size
	}
	return all, nil
}

// rule reads a rule whose target has an offset.
func (l layout) rule(rule []byte, target int) (r Rule, err error) {
	const inputInverted, outputInverted, protocolInverted = 1, 2, 0x40
	inverted := rule[l.inverted]
	if inverted&inputInverted == 0 {
		r.Input = rule[l.interfaces:][:nameSize]
	}
	if inverted&outputInverted == 0 {
		r.Output = rule[l.interfaces+nameSize:][:nameSize]
	}
	if inverted&protocolInverted == 0 {
		r.Protocol = uint8(binary.NativeEndian.Uint16(rule[l.protocol:]))
	}
	for at := l.matches; at < target; {
		size := int(binary.NativeEndian.Uint16(rule[at:]))
		if size < extensionSize || at+size > target {
			return r, errMalformed
		}
		r.Matches = append(r.Matches, Match{extension(rule[at:]), rule[at+extensionSize : at+size]})
		at += size
	}
	if extension(rule[target:]) == errorTarget {
		name, _, _ := bytes.Cut(rule[target+extensionSize:], []byte{0})
		r.Chain = string(name)
	}
	if extension(rule[target:]) == "" && len(rule) >= target+extensionSize+4 {
		r.Verdict = Verdict(binary.NativeEndian.Uint32(rule[target+extensionSize:]))
	}
	return r, nil
}

// extension returns the name of a match or target.
func extension(header []byte) string {
	name, _, _ := bytes.Cut(header[extensionName:extensionSize-1], []byte{0})
	return string(name)
}
