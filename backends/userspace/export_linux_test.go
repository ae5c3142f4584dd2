package userspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
)

// Dump returns all objects of the default identity, as text.
func Dump(ctx context.Context, c Capture) (string, error) {
	b, err := New(Options{Capture: c})
	if err != nil {
		return "", err
	}
	defer b.Close() //nolint:errcheck // the backend was used for reading only
	var lines []string
	if c, ok := b.capture.(*netfilter.Capture); ok {
		for o, e := range c.List(ctx) {
			err = errors.Join(err, e)
			lines = append(lines, fmt.Sprintf("%+v", o))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

// ReachFrom makes a port the source port of the next connection to an endpoint, with TPROXY.
func (b *Backend) ReachFrom(port uint16) {
	if c, ok := b.capture.(*netfilter.Capture); ok && c.Dialer != nil {
		c.Dialer.StartAt(port)
	}
}
