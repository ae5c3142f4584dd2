package userspace

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Dump writes all objects of the default identity.
func Dump(ctx context.Context, c Capture) (string, error) {
	b, err := New(Options{Capture: c})
	if err != nil {
		return "", err
	}
	defer b.Close() //nolint:errcheck // it was used for reading only
	var lines []string
	for o, err := range b.kernel.List(ctx) {
		if err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprintf("%+v", o))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// ReachFrom makes a port that from which the next endpoint is reached.
func (b *Backend) ReachFrom(port uint16) {
	s := b.sockets
	for s.nextPort() != port {
	}
	s.ports.Add(^uint32(0)) // it is the next one again
}
