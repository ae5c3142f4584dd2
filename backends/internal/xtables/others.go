package xtables

// others are the chains of tables that do not belong to the identity, by their names. Another
// program may have copied own rules there, or renamed an own chain.
type others map[chainRef]*other

// other is a chain whose name is not one of the identity.
type other struct {
	// strays are own rules.
	strays []string
	// isForeign is true if another program wrote a rule of the chain; leadsHere if a rule leads to
	// a chain of the identity.
	isForeign, leadsHere bool
	// fromOwn is true if an own rule leads to the chain, fromOther if another rule does.
	fromOwn, fromOther bool
	// isCanary is true for a canary that kube-proxy has left.
	isCanary bool
}

func (o others) at(ref chainRef) *other {
	if o[ref] == nil {
		o[ref] = &other{}
	}
	return o[ref]
}

// otherRule reads a rule of a chain whose name is not one of the identity.
func (l *listing) otherRule(ref chainRef, rule string) {
	o := l.others.at(ref)
	isOwn := isWritable(rule) && l.names.ownsComment(rule)
	if isOwn {
		o.strays = append(o.strays, rule)
	}
	o.isForeign = o.isForeign || l.isForeign == nil || l.isForeign(ref.table, rule)
	o.leadsHere = o.leadsHere || l.names.Owns(ref.table, lastTarget(rule))
	l.follow(ref.table, rule, isOwn)
}

// follow records that a rule leads to a chain. The identity has no rule that leads to the chain of
// another program, so that an own rule which does was written for a chain that was renamed.
func (l *listing) follow(t Table, rule string, isOwn bool) {
	name := lastTarget(rule)
	if name == "" || name == "DNAT" || l.names.Owns(t, name) {
		return
	}
	o := l.others.at(chainRef{t, name})
	o.fromOwn, o.fromOther = o.fromOwn || isOwn, o.fromOther || !isOwn
}

// addTo adds what must be removed: the chains that were renamed, and own rules in chains of other
// programs. A renamed chain that leads to no own chain is out of use without its removal, and harms nothing.
func (o others) addTo(all saved) {
	for ref, c := range o {
		switch {
		case c.isCanary, c.fromOwn && !c.fromOther && c.leadsHere && !c.isForeign:
			all[ref] = []string{""} // an operation on the rule "" is one on the chain
		case len(c.strays) > 0:
			all[ref] = c.strays
		}
	}
}
