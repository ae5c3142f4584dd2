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
