package xtables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
)

// Table is a table of iptables.
type Table uint8

// The tables.
const (
	NAT Table = iota
	Filter
	Mangle
)

// String returns the name that iptables has for the table.
func (t Table) String() string { return [...]string{"nat", "filter", "mangle", "?"}[t&3] }

// Names say which chains belong to a consumer.
type Names struct {
	// Prefix begins the names of all chains, as [Prefix] returns it.
	Prefix string
	// Chains are the chains of each table that exist whatever the service ports are, without
	// the prefix. Tables without an entry are neither read nor written.
	Chains map[Table][]string
	// Open are those chains, in any table, whose rules are objects of their own, because many
	// service ports have rules there. Each other chain is one object.
	Open []string
	// Kinds begin the names, without the prefix, of chains of one service port. The rest of
	// such a name is a [Hash].
	Kinds []string
	// Uncommented says that no rule has a comment of [Names.Comment]: rules that have one belong
	// to another consumer, whose chains have the same prefix and other names.
	Uncommented bool
}

// hashLen is the length of a hash in the name of a chain.
const hashLen = 16

// longestPrefix leaves room for SVC-, a hash, and the dash after the prefix: the kernel
// accepts names of 28 characters.
const longestPrefix = 7

// Prefix returns the prefix of the names of chains of an identity: its name in capitals and a
// dash. A long name is shortened to two characters and a hash.
func Prefix(identity string) string {
	if len(identity) > longestPrefix {
		identity = identity[:2] + Hash(identity)[:longestPrefix-2]
	}
	return strings.ToUpper(identity) + "-"
}

// Hash returns a hash for the name of a chain.
func Hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:hashLen]
}

func isHash(s string) bool {
	return len(s) == hashLen && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// canary is the name, without the prefix, of a chain that exists only while rules are tried. kube-proxy has
// a chain of this name too.
const canary = "PROXY-CANARY"

// Canary returns the name of a chain in each table that exists only while rules are tried.
func (n Names) Canary() string { return n.Prefix + canary }

// Comment returns the match that makes a rule of one of the kernel's own chains an own one,
// wherever another program moves it or its chain.
func (n Names) Comment(purpose string) string {
	return `-m comment --comment "kubernetes ` + purpose + n.owner() + `" `
}

// owner ends each own comment.
func (n Names) owner() string { return " (" + strings.TrimSuffix(n.Prefix, "-") + ")" }

// tables returns the tables that are used.
func (n Names) tables() []Table {
	return slices.DeleteFunc([]Table{NAT, Filter, Mangle}, func(t Table) bool { return !n.uses(t) })
}

func (n Names) uses(t Table) bool {
	_, does := n.Chains[t]
	return does
}

// tableNamed returns the table of a name; ok is false if it is not used.
func (n Names) tableNamed(name string) (t Table, ok bool) {
	for _, t := range n.tables() {
		if t.String() == name {
			return t, true
		}
	}
	return 0, false
}

// Owns reports whether a chain of a table belongs to the consumer.
func (n Names) Owns(t Table, chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.Prefix)
	if !ok || !n.uses(t) {
		return false
	}
	if rest == canary || slices.Contains(n.Chains[t], rest) {
		return true
	}
	for _, kind := range n.Kinds {
		if digest, ok := strings.CutPrefix(rest, kind); ok && isHash(digest) {
			return true
		}
	}
	return false
}

// IsOpen reports whether the rules of a chain are objects of their own: the rules of open chains
// and of the kernel's own.
func (n Names) IsOpen(chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.Prefix)
	return !ok || slices.Contains(n.Open, rest)
}
