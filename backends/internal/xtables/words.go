package xtables

import (
	"regexp"
	"strings"
)

// word is a word of a rule as iptables-save prints it. Single spaces separate words. A word
// with other characters than letters, digits, dashes and underscores may be in quotes, with
// a backslash before each quote and backslash. Quotes within an unquoted word have no
// meaning, because iptables-save does not quote all words.
type word struct {
	// text is without the quotes, but with the backslashes.
	text   string
	quoted bool
}

func (w word) is(text string) bool { return !w.quoted && w.text == text }

// nextWord returns the first word and the rest. The word is not whole if its quotes are not
// closed.
func nextWord(rule string) (w word, rest string, whole bool) {
	if !strings.HasPrefix(rule, `"`) {
		text, rest, _ := strings.Cut(rule, " ")
		return word{text: text}, rest, true
	}
	for i := 1; i < len(rule); i++ {
		switch rule[i] {
		case '\\':
			i++
		case '"':
			return word{text: rule[1:i], quoted: true}, strings.TrimPrefix(rule[i+1:], " "), true
		}
	}
	return word{text: rule[1:], quoted: true}, "", false
}

// isWhole reports whether all quotes of a rule are closed. A comment may contain newlines.
func isWhole(rule string) bool {
	if !strings.Contains(rule, ` "`) {
		return true
	}
	for rule != "" {
		var whole bool
		if _, rule, whole = nextWord(rule); !whole {
			return false
		}
	}
	return true
}

// ownsJump reports whether a rule of one of the kernel's own chains belongs to this
// identity: its comment says so, or it jumps to one of its chains, matches nothing but the state
// of connections, and has no foreign comment. Other programs may have jumps of their own to these
// chains. Those with the name of kube-proxy in their comments are of its mode ipvs.
func (n Names) ownsJump(t Table, rule string) bool {
	if n.ownsComment(rule) {
		return true
	}
	jump := regexp.MustCompile(`^(?:-m conntrack --ctstate \S+ |-m comment --comment "(?:kubernetes|kube-proxy) (?:[^"\\\n]|\\.)*" )*-j ([^"\s]+)$`)
	to := jump.FindStringSubmatch(rule)
	return to != nil && n.Owns(t, to[1])
}

// ownsComment reports whether a rule has a comment of [Names.Comment], wherever the rule is and
// wherever it leads: another program may have moved or copied it, or renamed its target.
func (n Names) ownsComment(rule string) bool {
	if !isWritable(rule) || !strings.Contains(rule, n.owner()) {
		return false
	}
	for rule != "" {
		var w word
		if w, rule, _ = nextWord(rule); !w.is("--comment") {
			continue
		}
		if w, rule, _ = nextWord(rule); w.quoted && n.isOwner(w.text) {
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

// isWritable reports whether a rule can be written as it was printed. That is impossible if
// it has a comment with a newline, or if iptables cannot print it, as for some rules of nft.
func isWritable(rule string) bool { return rule != "" && !strings.Contains(rule, "\n") }
