package allocator

import "fmt"

// Reason says in general why something failed. It is what [errors.Is] finds
// within the errors of this package; the error types around it name the key,
// the owner or the range.
type Reason string

// The reasons.
const (
	// ErrAllocated: the key is held by somebody else. See [HeldError].
	ErrAllocated Reason = "already allocated"
	// ErrNotOwner: only its owner can release or bind a key. See [HeldError].
	ErrNotOwner Reason = "held by another owner"
	// ErrFull: no key is left in any range that could serve. See [RangeError].
	ErrFull Reason = "range is full"
	// ErrNotInRange: the key lies in no range, is excluded from it, or the
	// range is draining. See [RangeError].
	ErrNotInRange Reason = "not in the valid range"
	// ErrTooLarge: the range has more keys than an allocator can number. See
	// [RangeError].
	ErrTooLarge Reason = "range is too large"
	// ErrInvalid: the request or the configuration makes no sense.
	ErrInvalid Reason = "invalid"
	// ErrExpired: a reservation ended before it was bound.
	ErrExpired Reason = "the reservation has expired"
	// ErrConflict: the store holds something else than was presumed; nothing
	// was written. See [ConflictError].
	ErrConflict Reason = "the store has changed meanwhile"
	// ErrNoMap: the store has no allocation map. Nothing can be allocated
	// before something, such as a repair, has made one.
	ErrNoMap Reason = "there is no allocation map"
	// ErrCompacted: changes that old are no longer known; load again.
	ErrCompacted Reason = "the store no longer knows changes that old"
	// ErrStale: the store answers from the past again and again.
	ErrStale Reason = "the store answers from the past"
	// ErrUnknown: nobody knows whether a change was made, because the store
	// could not be asked. The keys are not handed out until it can.
	ErrUnknown Reason = "the outcome is unknown"
)

// Error makes a Reason an error.
func (r Reason) Error() string { return string(r) }

// HeldError says who holds a key that somebody else wanted to allocate, bind or
// release. It is [ErrAllocated] or [ErrNotOwner].
type HeldError struct {
	Reason Reason
	// Key is what was asked for, and Owner holds it.
	Key   Key
	Owner Owner
}

// Error names the key and its owner.
func (e *HeldError) Error() string {
	if e.Reason == ErrAllocated {
		return fmt.Sprintf("%v is already allocated to %q", e.Key, e.Owner)
	}
	return fmt.Sprintf("%v is held by %q", e.Key, e.Owner)
}

// Unwrap gives the reason.
func (e *HeldError) Unwrap() error { return e.Reason }

// RangeError names the ranges that cannot serve a request. It is [ErrFull],
// [ErrNotInRange] or [ErrTooLarge].
type RangeError struct {
	Reason Reason
	// Key is what was asked for; the zero Key if any would have done.
	Key Key
	// Kind is what was asked for if any key would have done.
	Kind Kind
	// Count is how many keys were asked for if any would have done.
	Count int
	// Range is the range in canonical form; several are separated by commas,
	// and without any it is empty.
	Range string
}

// Error says what was asked for, and of which ranges.
func (e *RangeError) Error() string {
	isKey := e.Key.Kind() != 0
	switch {
	case e.Reason == ErrTooLarge:
		return fmt.Sprintf("range %s is too large: an IPv6 range has at most 64 host bits, an IPv4 range 30", e.Range)
	case e.Range == "" && isKey:
		return fmt.Sprintf("%v cannot be allocated: there is no %v range to allocate from", e.Key, e.Key.Kind())
	case e.Range == "":
		return fmt.Sprintf("there is no %v range to allocate from", e.Kind)
	case isKey:
		return fmt.Sprintf("%v is none of the keys of range %s", e.Key, e.Range)
	case e.Count > 1:
		return fmt.Sprintf("range %s has no %d free keys", e.Range, e.Count)
	}
	return fmt.Sprintf("range %s is full", e.Range)
}

// Unwrap gives the reason.
func (e *RangeError) Unwrap() error { return e.Reason }

// ConflictError is what [Store.Commit] returns if a precondition does not hold.
// Nothing was written. It is [ErrConflict].
type ConflictError struct {
	// Key is one whose precondition does not hold; there may be others.
	Key Key
	// Current is what the store holds for the key; the zero Claim if nothing.
	Current Claim
}

// Error names the key and who holds it.
func (e *ConflictError) Error() string {
	if e.Current.Version == 0 {
		return fmt.Sprintf("%v is not held by anyone: %v", e.Key, ErrConflict)
	}
	return fmt.Sprintf("%v is held by %q at version %d: %v", e.Key, e.Current.Owner, e.Current.Version, ErrConflict)
}

// Unwrap gives the reason.
func (e *ConflictError) Unwrap() error { return ErrConflict }
