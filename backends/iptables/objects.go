package iptables

import "github.com/vipkit/vipkit/backends"

// key names a chain, or one rule of an open chain.
type key struct {
	table table
	// back says that a rule stands behind all those without it, and that a chain
	// is written after other tables.
	back bool
	// shared says that several service ports may need the rule.
	shared bool
	chain  string
	// rule is the text of a rule, without -A and the chain; empty for a chain.
	rule string
}

type (
	// object is a chain with its rules, a line each; the value of an open chain,
	// and of a rule of one, is empty.
	object = backends.Object[key, string]
	op     = backends.Op[key, string]
)

// Rank implements [backends.Key]: there is no order, as the text for the kernel is put
// into one when it is written.
func (k key) Rank() int { return 0 }

// Shared implements [backends.Key].
func (k key) Shared() bool { return k.shared }

// refused is the table of an object that cannot be written: the value says why.
const refused table = 255

// refusal is an object that makes a commit fail, where what all service ports need
// cannot be written.
func refusal(err error) object {
	return object{Key: key{table: refused}, Value: err.Error()}
}
