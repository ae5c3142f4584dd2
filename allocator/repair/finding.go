package repair

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/vipkit/vipkit/allocator"
)

// Use says that an object has an address or a port: a field of a Service, for
// instance.
type Use struct {
	Owner allocator.Owner
	// Text is what the object says, as it is spelled there.
	Text string
}

// ErrNoOwners says that nobody uses anything, as far as the list of owners goes. See
// [Options].AllowNoOwners.
var ErrNoOwners = errors.New("the list of owners is empty, which is likely a mistake")

// TooManyError says that a pass would have taken too many claims from their owners,
// and has taken none. See [Options].MaxRemovals.
type TooManyError struct {
	// Removals is how many it would have taken, Most how many it might.
	Removals, Most int
}

// Error names both numbers.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%d claims would be taken from their owners, where %d are the most: is the list of owners whole?", e.Removals, e.Most)
}

// Problem is a way in which store and owners can differ.
type Problem uint8

// The problems.
const (
	// Missing: used and not held, or only reserved. Mended by a claim.
	Missing Problem = iota + 1
	// Orphaned: held and not used, or a reservation that has ended. Mended by
	// freeing it.
	Orphaned
	// WrongOwner: held for an owner that does not use it, and used by another.
	// Mended by giving it to that one.
	WrongOwner
	// Duplicate: used by an owner although another one has it and uses it, too.
	// The store cannot mend that: one of the objects must change.
	Duplicate
	// OutOfRange: used or held, and in no range. Somebody may have taken a range
	// away by mistake, so it is only reported. With [Mend], what is held and not used
	// is freed.
	OutOfRange
	// NonCanonical: spelled in another way than the canonical one. It is the same
	// key for all that; but others may compare spellings.
	NonCanonical
	// Invalid: neither an address nor a port. As nobody knows what its owner means,
	// what is held for that owner stays.
	Invalid
)

// String names the problem.
func (p Problem) String() string {
	switch p {
	case Missing:
		return "missing"
	case Orphaned:
		return "orphaned"
	case WrongOwner:
		return "wrong owner"
	case Duplicate:
		return "duplicate"
	case OutOfRange:
		return "out of range"
	case NonCanonical:
		return "non-canonical"
	case Invalid:
		return "invalid"
	}
	return "Problem(" + strconv.Itoa(int(p)) + ")"
}

// Action is what to do about a problem.
type Action uint8

// The actions. Those that only a change of an object can mend are reported, whatever
// the policy says.
const (
	// Default mends Missing, Orphaned and WrongOwner, and reports all else.
	Default Action = iota
	// Report changes nothing.
	Report
	// Mend changes the store.
	Mend
)

// Finding is one difference between store and owners.
type Finding struct {
	Problem Problem
	// Key is what it is about; the zero Key if that cannot be read.
	Key allocator.Key
	// Owner is who uses it, or if nobody does, who holds it.
	Owner allocator.Owner
	// Holder is who has it instead of Owner, if anybody.
	Holder allocator.Owner
	// Text is how it was spelled.
	Text string
	// Mended says that the store was changed. Where it is false although the
	// policy says otherwise, somebody else was faster, and the next pass will see.
	Mended bool
}

// String describes the finding in one line. What could be a command to a terminal, or
// another line, is escaped.
func (f Finding) String() string {
	what := f.Text
	if what == "" {
		what = f.Key.String()
	}
	s := fmt.Sprintf("%v: %s of %s", f.Problem, escaped(what), escaped(string(f.Owner)))
	if f.Holder != "" {
		s += ", held by " + escaped(string(f.Holder))
	}
	if f.Mended {
		s += " (mended)"
	}
	return s
}

func escaped(text string) string {
	text = strconv.Quote(text)
	return text[1 : len(text)-1]
}
