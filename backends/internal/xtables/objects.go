package xtables

import (
	"strings"

	"github.com/vipkit/vipkit/backends"
)

// Key identifies a chain, or one rule of an open chain or of one of the kernel's own.
type Key struct {
	Table Table
	// Back is true for a rule after all rules without it, and for a chain that is written
	// after the other tables.
	Back bool
	// IsShared is true if several service ports may need the rule.
	IsShared bool
	Chain    string
	// Rule is the text of a rule, without -A and the chain; empty for a chain.
	Rule string
}

// Object is a chain, whose value has its rules as [Lines] joins them, or one rule of an open
// chain or of one of the kernel's own. The value of open chains and of single rules is empty.
type Object = backends.Object[Key, string]

// Op adds, replaces or removes an [Object].
type Op = backends.Op[Key, string]

// Rank implements [backends.Key]. All ranks are equal: the script has an order of its own.
func (k Key) Rank() int { return 0 }

// Shared implements [backends.Key].
func (k Key) Shared() bool { return k.IsShared }

// Lines joins the rules of a chain, as the value of its object has them.
func Lines(rules []string) string {
	if len(rules) == 0 {
		return ""
	}
	return strings.Join(rules, "\n") + "\n"
}
