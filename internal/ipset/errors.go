package ipset

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported reports that the kernel lacks ipset, or a type of sets.
	ErrUnsupported = errors.New("unsupported by the kernel")
	// ErrNotExist reports that a set does not exist.
	ErrNotExist = errors.New("the set does not exist")
	// ErrFull reports that a set has as many entries as maxelem allows.
	ErrFull = errors.New("the set is full (maxelem)")
	// ErrInUse reports that a set cannot be destroyed, because a rule or another set refers
	// to it, or because a program lists it at the moment.
	ErrInUse = errors.New("the set is in use")
	// ErrDiffers reports that a set of that name exists and is not as it is wanted.
	ErrDiffers = errors.New("the set exists and differs")
)

// Error says what failed.
type Error struct {
	Action string // such as "add" or "create"
	Set    string // the name of the set
	Index  int    // of the operation, for [Conn.Do]
	Entry  Entry  // for [Conn.Do]
	// Err wraps one of the errors of this package, or the errno; or it says which field of
	// the set or entry is wrong.
	Err error
}

// Error names the set and the entry.
func (e *Error) Error() string {
	if e.Entry != (Entry{}) {
		return fmt.Sprintf("ipset: %s %v, set %s: %v", e.Action, e.Entry, e.Set, e.Err)
	}
	return fmt.Sprintf("ipset: %s set %s: %v", e.Action, e.Set, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
