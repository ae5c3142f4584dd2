package nftables

import "github.com/vipkit/vipkit/backends"

// chainsAhead takes new chains, and the sets that they need, out of operations
// that make an existing frontend, or its restriction, lead somewhere else; they
// are to be committed first. For a packet that the kernel began to look at
// before a commit finds the rules of before it, but the elements of after it: in
// a chain that is as new as the element that leads there it would find no rules,
// and go on untranslated, or unrestricted.
func chainsAhead(ops []op) (first, rest []op) {
	chains, changes := false, false
	for i := range ops {
		o := &ops[i]
		chains = chains || o.Kind == backends.Add && o.Key.kind == kindChain
		changes = changes || o.Kind == backends.Replace && (o.Key.kind == kindFrontend || o.Key.kind == kindRestriction)
	}
	if !chains || !changes {
		return nil, ops
	}
	for _, o := range ops {
		if o.Kind == backends.Add && (o.Key.kind == kindTable || o.Key.kind == kindSet || o.Key.kind == kindChain) {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	return first, rest
}
