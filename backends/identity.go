package backends

import (
	"fmt"
	"math/bits"
)

// Identity separates instances that program one network namespace: several of
// this library, kube-proxy, or another vendor's. A backend changes only objects
// that its identity marks as its own. The zero value is usable.
type Identity struct {
	// Name names the tables, or begins the names of tables, chains and sets. It
	// consists of lower-case letters, digits and dashes, at most 24 of them,
	// and begins with a letter. Empty means "vipkit".
	Name string
	// Mark is the single bit of the packet mark that selects, within the node,
	// the packets to masquerade. Zero means 0x4000.
	Mark uint32
	// Priority is added to the hook priorities of the backend's base chains;
	// chains with a lower one process packets first.
	Priority int32
}

// The defaults of an [Identity].
const (
	// DefaultName is the name of tables.
	DefaultName = "vipkit"
	// DefaultMark is the bit that marks packets.
	DefaultMark = 0x4000
)

// Complete fills in defaults. It returns an error for a field that is not valid.
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
		return i, fmt.Errorf("identity: priority %d is not within -50 and 50: the chains would run in the wrong order with the kernel's own hooks", i.Priority)
	}
	return i, nil
}
