package nfnetlink

import (
	"golang.org/x/sys/unix"
)

// AddEncodedRule appends a rule whose expressions have been encoded before, as
// a list of NFTA_LIST_ELEM attributes, with user data of the caller's own. So a
// rule that is written often need not be encoded again.
func (b *Batch) AddEncodedRule(t Table, chain string, exprs, userdata []byte) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t, chain)
	list := b.nest(unix.NFTA_RULE_EXPRESSIONS)
	b.buf = append(b.buf, exprs...)
	b.close(list)
	b.ruleData(userdata)
	b.end()
}

// ruleData appends the user data of a rule, if it has any.
func (b *Batch) ruleData(userdata []byte) {
	if len(userdata) > 0 {
		b.buf = appendBytes(b.buf, unix.NFTA_RULE_USERDATA, userdata)
	}
}
