package proxy

import (
	"errors"
	"maps"
	"slices"
)

// Achieved returns what the dataplane holds after an Apply from s to new has returned err, by
// the contract of [Backend]: new if err is nil; new with the ports of a [PortErrors] as they are
// in s; the zero Snapshot after [ErrDataplaneLost]; and s after any other error.
func (s Snapshot) Achieved(new Snapshot, err error) Snapshot {
	failed := refused(err)
	switch {
	case err == nil:
		return new
	case errors.Is(err, ErrDataplaneLost):
		return Snapshot{}
	case failed != nil:
		return new.Revert(s, slices.Collect(maps.Keys(failed))...)
	}
	return s
}

// refused returns the service ports that Apply could not program, if it programmed all others; else nil.
func refused(err error) PortErrors {
	failed, some := errors.AsType[PortErrors](err)
	if !some || errors.Is(err, ErrDataplaneLost) {
		return nil
	}
	return failed
}
