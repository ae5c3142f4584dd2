package backends

import "errors"

// ErrConflict marks an error of [Target.Commit] for an object that exists although it should
// not, or is missing although it should exist. Between known states, another program has changed the
// dataplane. In a full apply, a service port is the cause.
var ErrConflict = errors.New("object state conflicts with the plan")

// ErrUnavailable marks an error of [Target.Commit] if no change is possible at present: for example,
// another program holds a lock, or memory is short for a [Replacement]. Apply ends with this error, and
// blames no service port.
var ErrUnavailable = errors.New("the dataplane cannot be changed now")

// ErrReplace marks an error of List or Commit if the existing objects cannot be changed in place. Commit
// has then changed nothing. The same Apply starts again from the zero snapshot, and calls Replace of
// [TargetAbilities] with must set.
var ErrReplace = errors.New("objects cannot be changed in place")
