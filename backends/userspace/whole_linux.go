package userspace

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// listTries bounds how often a listing is repeated that a change interrupted. Routes and
// addresses change whenever a pod starts or ends.
const listTries = 10

// whole repeats a listing until no change interrupts it.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range listTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
