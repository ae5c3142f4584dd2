package backends

import (
	"cmp"
	"fmt"
	"math/bits"
)

// Identity separates instances that program one network namespace: several of
// this library, kube-proxy, or another vendor's. A backend changes only objects
// that its identity marks as its own. The zero value is usable.
type Identity struct {
	// Name names the tables, or begins the names of tables, chains and sets. It
	// consists of lower-case letters, digits and dashes, at most 24 of them,
	// and begins with a letter. Empty means the default of the kind of backend:
	// "vipkit-userspace" for userspace, else "vipkit". A backend with the default name
	// removes the objects that an ended backend of another kind has left under its default
	// name. Backends of several kinds that serve side by side need other names.
	Name string
	// Mark is the single bit of the packet mark that selects, within the node,
	// the packets to masquerade. Zero means the default of the kind: 0x4000 for
	// iptables, 0x1000 for nftables, 0x40 for userspace and 0x20 for ipvs.
	Mark uint32
	// Priority is added to the hook priorities of the backend's base chains.
	// A chain with a lower priority processes packets first.
	Priority int32
}

// DefaultName is the default name of an [Identity] of most kinds of backends.
const DefaultName = "vipkit"

// Complete fills in the defaults of a kind of backend. It returns an error for a field that is not
// valid.
func (i Identity) Complete(defaults Identity) (Identity, error) {
	i.Name, i.Mark = cmp.Or(i.Name, defaults.Name), cmp.Or(i.Mark, defaults.Mark)
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
