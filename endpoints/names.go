package endpoints

import "strings"

// names keeps one copy of every string that is in use, and counts its users.
// Node names and hints come again and again, in endpoint after endpoint.
type names map[string]*name

type name struct {
	text string
	uses int
}

// acquire gives the copy to one more user. It does not keep s.
func (n names) acquire(s string) string {
	if s == "" {
		return ""
	}
	known := n[s]
	if known == nil {
		known = &name{text: strings.Clone(s)}
		n[known.text] = known
	}
	known.uses++
	return known.text
}

// release takes back what one acquire gave.
func (n names) release(s string) {
	if s == "" {
		return
	}
	known := n[s]
	if known.uses--; known.uses == 0 {
		delete(n, s)
	}
}

// find gives a string with these bytes: the copy if there is one.
func (n names) find(b []byte) string {
	if known := n[string(b)]; known != nil {
		return known.text
	}
	return string(b)
}
