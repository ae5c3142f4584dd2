package backends

import "errors"

// ErrConflict marks an error of [Target.Commit] for an object that exists and should
// not, or does not exist and should. Between known states it means that another
// program changed the dataplane; in a full apply a service port causes it.
var ErrConflict = errors.New("object state conflicts with the plan")

// ErrUnavailable marks an error of [Target.Commit] if no change is possible at present; for example,
// another program holds a lock, or memory is short for a [Replacement]. Apply tries nothing else and
// returns it, and names no service port.
var ErrUnavailable = errors.New("the dataplane cannot be changed now")

// ErrReplace marks an error of List or Commit of a target with Replace if the existing objects
// cannot be changed in place. Nothing was changed; the same Apply starts again from the
// zero snapshot and calls Replace with must set.
var ErrReplace = errors.New("objects cannot be changed in place")
