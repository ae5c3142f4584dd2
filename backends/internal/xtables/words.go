package xtables

import (
	"regexp"
	"strings"
)

// ownsJump reports whether a rule of one of the kernel's own chains belongs to this
// identity: its comment says so, or it jumps to one of its chains, matches nothing but the state
// of connections, and has no foreign comment. Other programs may have jumps of their own to these
// chains. Those with the name of kube-proxy in their comments are of its mode ipvs.
func (n Names) ownsJump(t Table, rule string) bool {
	if n.ownsComment(rule) {
		return true
	}
	jump := regexp.MustCompile(`^(?:-m conntrack --ctstate \S+ |-m comment --comment "(?:kubernetes|kube-proxy) (?:[^"\\]|\\.)*" )*-j ([^"\s]+)$`)
	to := jump.FindStringSubmatch(rule)
	return to != nil && n.Owns(t, to[1])
}

// ownsComment reports whether a rule has a comment of [Names.Comment], wherever the rule is and
// wherever it leads: another program may have moved or copied it, or renamed its target.
func (n Names) ownsComment(rule string) bool {
	for isFound := !n.Uncommented; isFound; {
		var text string
		_, rule, isFound = strings.Cut(rule, `-m comment --comment "kubernetes `)
		if text, rule, _ = strings.Cut(rule, `"`); isFound && strings.HasSuffix(text, n.owner()) {
			return true
		}
	}
	return false
}

// endsTraversal reports whether a rule ends the traversal of all packets.
func endsTraversal(rule string) bool {
	return regexp.MustCompile(`^(?:-m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+) )*` +
		`(?:-g |-j (?:ACCEPT|DROP|RETURN|REJECT|DNAT|REDIRECT|SNAT|MASQUERADE)(?: |$))`).MatchString(rule)
}
