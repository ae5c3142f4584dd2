package backends

import "errors"

// ErrConflict marks an error of [Target.Commit] that says: an object exists that
// should not, or does not exist that should. Between known states that means
// that somebody else changed the dataplane; in a first load it is the fault of
// the service port.
var ErrConflict = errors.New("an object is not as expected")

// ErrExhausted marks an error of [Target.Commit] that says: the system lacks
// memory or the like, which is no fault of single service ports, though a smaller
// commit may succeed. What is to be replaced stays in effect then.
var ErrExhausted = errors.New("the system is short of resources")

// ErrUnavailable marks an error of [Target.Commit] that says: no change at all can be made
// at present, and none was made; for example, another program holds a lock. Apply ends
// with it, and names no service port.
var ErrUnavailable = errors.New("the dataplane cannot be changed now")

// ErrReplace marks an error of List or Commit of a [Replacer] that says: the existing
// objects cannot be changed in place. Nothing was changed; the same Apply begins again
// from the zero snapshot and calls Replace with must set.
var ErrReplace = errors.New("the objects are to be replaced as a whole")
