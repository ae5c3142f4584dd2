package endpoints

import "strings"

// names keeps one copy of every string in use, and counts its users: many endpoints have
// the same node name and hints. Package unique would need a handle beside each string, since it
// forgets a string without handles.
type names map[string]*name

type name struct {
	text string
	uses int
}

// acquire returns the copy of s and counts one more user. It does not keep s.
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

// release undoes one acquire.
func (n names) release(s string) {
	if s == "" {
		return
	}
	known := n[s]
	if known.uses--; known.uses == 0 {
		delete(n, s)
	}
}

// find returns a string with these bytes: the copy if one is in use.
func (n names) find(b []byte) string {
	if known := n[string(b)]; known != nil {
		return known.text
	}
	return string(b)
}
