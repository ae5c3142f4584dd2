package userspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/localroutes"
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
	switch c := b.capture.(type) {
	case *netfilter.Capture:
		lines, err = write(c.List(ctx))
	case *localroutes.Capture:
		lines, err = write(c.List(ctx))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

func write[K backends.Key, V comparable](objects iter.Seq2[backends.Object[K, V], error]) (lines []string, err error) {
	for o, e := range objects {
		err = errors.Join(err, e)
		lines = append(lines, fmt.Sprintf("%+v", o))
	}
	return lines, err
}

// ReachFrom makes a port the source port of the next connection to an endpoint, with TPROXY.
func (b *Backend) ReachFrom(port uint16) {
	if c, ok := b.capture.(*netfilter.Capture); ok && c.Dialer != nil {
		c.Dialer.StartAt(port)
	}
}
