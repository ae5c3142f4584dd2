package allocator

import "fmt"

// Reason is the class of an error of this package, for [errors.Is]. The error types
// that wrap it name the key, the owner or the range.
type Reason string

// The reasons.
const (
	// ErrAllocated: the key has another owner. See [HeldError].
	ErrAllocated Reason = "already allocated"
	// ErrNotOwner: only its owner can release or bind a key. See [HeldError].
	ErrNotOwner Reason = "held by another owner"
	// ErrFull: no key is left in any range that could serve. See [RangeError].
	ErrFull Reason = "range is full"
	// ErrNotInRange: the key is in no range, or its range is draining. See [RangeError].
	ErrNotInRange Reason = "not in the valid range"
	// ErrTooLarge: the range has more keys than an allocator can number. See
	// [RangeError].
	ErrTooLarge Reason = "range is too large"
	// ErrInvalid: the request or the configuration is invalid.
	ErrInvalid Reason = "invalid"
	// ErrExpired: a reservation ended before it was bound.
	ErrExpired Reason = "the reservation has expired"
	// ErrConflict: a precondition does not hold; nothing was written. See
	// [ConflictError].
	ErrConflict Reason = "the store has changed meanwhile"
	// ErrNoMap: the store has no allocation map. Nothing can be allocated before a
	// repair, or another program, has made one.
	ErrNoMap Reason = "there is no allocation map"
	// ErrCompacted: the store no longer has changes that old; load again.
	ErrCompacted Reason = "the store no longer has changes that old"
	// ErrStale: the store returned outdated data at every attempt.
	ErrStale Reason = "the store returns outdated data"
	// ErrUnknown: the outcome of a change is unknown, because the store did not
	// answer. The pool does not allocate the keys until it does.
	ErrUnknown Reason = "the outcome is unknown"
)

// Error makes a Reason an error.
func (r Reason) Error() string { return string(r) }

// HeldError names the owner of a key that another owner wanted to allocate, bind or
// release. It is [ErrAllocated] or [ErrNotOwner].
type HeldError struct {
	// Reason is [ErrAllocated] or [ErrNotOwner].
	Reason Reason
	// Key is the key of the request.
	Key Key
	// Owner has the key.
	Owner Owner
}

// Error names the key and its owner.
func (e *HeldError) Error() string {
	if e.Reason == ErrAllocated {
		return fmt.Sprintf("%v is already allocated to %q", e.Key, e.Owner)
	}
	return fmt.Sprintf("%v is held by %q", e.Key, e.Owner)
}

// Unwrap returns the reason.
func (e *HeldError) Unwrap() error { return e.Reason }

// RangeError names the ranges that cannot serve a request. It is [ErrFull],
// [ErrNotInRange] or [ErrTooLarge].
type RangeError struct {
	// Reason is [ErrFull], [ErrNotInRange] or [ErrTooLarge].
	Reason Reason
	// Key is the key that was requested; the zero Key if any of a kind was.
	Key Key
	// Kind is the requested kind if the request names no key.
	Kind Kind
	// Count is how many keys of the kind were requested.
	Count int
	// Range is the range in canonical form; several are separated by commas,
	// and without any it is empty.
	Range string
}

// Error names the request and the ranges.
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
		return fmt.Sprintf("%v cannot be allocated from range %s", e.Key, e.Range)
	case e.Count > 1:
		return fmt.Sprintf("range %s has fewer than %d free keys", e.Range, e.Count)
	}
	return fmt.Sprintf("range %s is full", e.Range)
}

// Unwrap returns the reason.
func (e *RangeError) Unwrap() error { return e.Reason }

// ConflictError is what [Store.Commit] returns if a precondition does not hold.
// Nothing was written. It is [ErrConflict].
type ConflictError struct {
	// Key is a key whose precondition does not hold; there may be others.
	Key Key
	// Current is what the store holds for the key; the zero Claim if nothing.
	Current Claim
}

// Error names the key and its owner.
func (e *ConflictError) Error() string {
	if e.Current.Version == 0 {
		return fmt.Sprintf("%v is free: %v", e.Key, ErrConflict)
	}
	return fmt.Sprintf("%v is held by %q at version %d: %v", e.Key, e.Current.Owner, e.Current.Version, ErrConflict)
}

// Unwrap returns the reason.
func (e *ConflictError) Unwrap() error { return ErrConflict }
