package iptables

import (
	"slices"
	"strings"
)

// word is one of the words of a rule as iptables-save prints it: words are
// separated by single spaces, and one that holds anything but letters, digits, dashes
// and underscores may stand in quotes, in which a backslash comes before quotes and
// backslashes. Quotes within a word mean nothing: not all that is printed is quoted.
type word struct {
	// text is without the quotes, but with the backslashes.
	text   string
	quoted bool
}

func (w word) is(text string) bool { return !w.quoted && w.text == text }

// nextWord takes the first word off. It is not whole if its quotes have no end.
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

// isWhole reports whether the quotes of a rule have ends. The end of a line does not
// end them: it may be part of a comment.
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

// target gives the chain that a rule leads to, or whatever else it does with packets.
func target(rule string) (name string) {
	for rule != "" {
		var w word
		if w, rule, _ = nextWord(rule); w.is("-j") || w.is("-g") {
			if w, _, _ = nextWord(rule); !w.quoted {
				name = w.text
			}
		}
	}
	return name
}

// ownsJump reports whether a rule of one of the kernel's own chains belongs to this
// identity: it leads to one of its chains, chooses packets by nothing but the state
// of their connections, and no comment says that it is of others. Whoever else has a
// use for those chains has rules of his own that lead there.
func (n names) ownsJump(t table, rule string) bool {
	if !isWritable(rule) {
		return false
	}
	var w []word
	for rule != "" {
		var next word
		next, rule, _ = nextWord(rule)
		w = append(w, next)
	}
	for len(w) >= 4 && isOwnMatch(w[:4]) {
		w = w[4:]
	}
	return len(w) == 2 && w[0].is("-j") && !w[1].quoted && n.owns(t, w[1].text)
}

// isOwnMatch reports whether jumps of ours have such a match.
func isOwnMatch(w []word) bool {
	state := w[1].is("conntrack") && w[2].is("--ctstate")
	comment := w[1].is("comment") && w[2].is("--comment") && w[3].quoted && strings.HasPrefix(w[3].text, "kubernetes ")
	return w[0].is("-m") && (state || comment)
}

// decides reports whether a rule ends the way of all packets.
func decides(rule string) bool {
	for strings.HasPrefix(rule, "-m comment --comment ") {
		_, rule, _ = nextWord(strings.TrimPrefix(rule, "-m comment --comment "))
	}
	flag, rule, _ := nextWord(rule)
	to, _, _ := nextWord(rule)
	if flag.is("-g") {
		return true
	}
	return flag.is("-j") && slices.ContainsFunc([]string{"ACCEPT", "DROP", "RETURN", "REJECT", "DNAT", "REDIRECT", "SNAT", "MASQUERADE"}, to.is)
}

// isUsual reports whether a rule of an open chain consists of nothing but what rules of
// this package do there, so that it can be removed by its text. What others have put
// there may be printed in a form that is not taken back.
func isUsual(t table, rule string) bool {
	if !isWritable(rule) {
		return false
	}
	for rule != "" {
		var flag, value word
		flag, rule, _ = nextWord(rule)
		value, rule, _ = nextWord(rule)
		if flag.quoted || value.quoted != flag.is("--comment") {
			return false
		}
		switch flag.text {
		case "-d", "-p", "--comment", "--dport", "--dst-type", "--reject-with":
		case "-m":
			if !slices.Contains([]string{"comment", "tcp", "udp", "sctp", "addrtype"}, value.text) {
				return false
			}
		case "-j":
			if t == nat && (value.text == "DROP" || value.text == "REJECT") {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// isWritable reports whether a rule can be written as it was printed: comments may
// hold the end of a line, and of rules that others have made with the program nft,
// iptables prints only what it knows.
func isWritable(rule string) bool { return rule != "" && !strings.Contains(rule, "\n") }
