package netns

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// listTries bounds how often an interrupted listing is repeated. Routes and addresses change
// whenever a pod starts or ends.
const listTries = 10

// Consistent repeats a listing until no change interrupts it.
func Consistent[T any](list func() ([]T, error)) (all []T, err error) {
	for range listTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
