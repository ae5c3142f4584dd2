package backends

import (
	"fmt"
	"math/bits"
)

// Identity keeps instances apart that program one network namespace: several of
// this library, kube-proxy, or another vendor's. A backend touches only what
// its identity marks as its own. The zero value is usable.
type Identity struct {
	// Name names the tables, or begins the names of tables, chains and sets. It
	// consists of lower-case letters, digits and dashes, at most 24 of them,
	// and begins with a letter. Empty means "vipkit".
	Name string
	// Mark is the single bit of the packet mark by which a packet is
	// remembered, within the node, as one to be masqueraded. Zero means
	// 0x4000.
	Mark uint32
	// Priority is added to the hook priorities of the backend's base chains;
	// a lower one sees packets before others do.
	Priority int32
}

// The defaults of an [Identity].
const (
	DefaultName = "vipkit"
	DefaultMark = 0x4000
)

// Complete fills in defaults, or says what is wrong.
func (i Identity) Complete() (Identity, error) {
	if i.Name == "" {
		i.Name = DefaultName
	}
	if i.Mark == 0 {
		i.Mark = DefaultMark
	}
	for n, c := range i.Name {
		letter := c >= 'a' && c <= 'z'
		if !letter && (n == 0 || c != '-' && (c < '0' || c > '9')) {
			return i, fmt.Errorf("identity: name %q: want lower-case letters, digits and dashes, beginning with a letter", i.Name)
		}
	}
	switch {
	case len(i.Name) > 24:
		return i, fmt.Errorf("identity: name %q is longer than 24 characters", i.Name)
	case bits.OnesCount32(i.Mark) != 1:
		return i, fmt.Errorf("identity: mark %#x is not a single bit", i.Mark)
	case i.Priority < -50 || i.Priority > 50:
		return i, fmt.Errorf("identity: priority %d is not within -50 and 50: the chains would leave their place among the kernel's own hooks", i.Priority)
	}
	return i, nil
}
