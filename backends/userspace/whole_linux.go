package userspace

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// listTries bounds how often a list is read that changes meanwhile, as routes and
// addresses do where pods come and go.
const listTries = 10

// whole reads a list until nothing changed on the way.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range listTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
