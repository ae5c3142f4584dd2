package allocatorcli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
)

// Kind is a kind of store that a program has.
type Kind struct {
	// Name is what -store says of it, up to a colon.
	Name string
	// Path names what comes behind the colon, such as "PATH"; "" if nothing may.
	Path string
	// PathOptional says that there need not be a path.
	PathOptional bool
	// RangesOptional says that the store can have ranges of its own.
	RangesOptional bool
	// Elsewhere, unless "", is the command that has this kind of store instead.
	Elsewhere string
	// CommandTime is how long one command may take; 0 for as long as it takes.
	CommandTime time.Duration
	// Open opens a store for the ranges that were asked for.
	Open func(ctx context.Context, path string, ranges []allocator.Config) (Opened, error)
}

// Opened is a store that is open.
type Opened struct {
	Store allocator.Store
	// Ranges are those to work with.
	Ranges []allocator.Config
	// Unusable tells of ranges that cannot be used, while those above can; nil if
	// there are none.
	Unusable error
	// Close ends the store; nil if nothing has to be done.
	Close func() error
}

// Memory is the kind that forgets everything when the program ends.
func Memory() Kind {
	return Kind{Name: "memory", Open: func(_ context.Context, _ string, ranges []allocator.Config) (Opened, error) {
		return Opened{Store: allocator.NewMemory(allocator.State{}, nil), Ranges: ranges}, nil
	}}
}

// File is the kind that keeps claims in a file.
func File() Kind {
	return Kind{Name: "file", Path: "PATH", Open: func(_ context.Context, path string, ranges []allocator.Config) (Opened, error) {
		store, err := filestore.Open(path)
		if err != nil {
			return Opened{}, err
		}
		return Opened{Store: store, Ranges: ranges, Close: store.Close}, nil
	}}
}

// spellings is how to name stores of this kind.
func (k Kind) spellings() []string {
	switch {
	case k.Path == "":
		return []string{k.Name}
	case k.PathOptional:
		return []string{k.Name, k.Name + ":" + k.Path}
	}
	return []string{k.Name + ":" + k.Path}
}

// fits reports whether a path, or none, is what the kind takes.
func (k Kind) fits(path string, hasPath bool) bool {
	return hasPath && path != "" && k.Path != "" || !hasPath && (k.Path == "" || k.PathOptional)
}

// stores lists what -store takes.
func (p Program) stores() string {
	var all []string
	for _, k := range p.Kinds {
		if k.Elsewhere == "" {
			all = append(all, k.spellings()...)
		}
	}
	last := len(all) - 1
	if last < 1 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// kind finds what -store names.
func (p Program) kind(text string) (Kind, string, error) {
	name, path, hasPath := strings.Cut(text, ":")
	at := slices.IndexFunc(p.Kinds, func(k Kind) bool { return k.Name == name })
	switch {
	case at >= 0 && p.Kinds[at].Elsewhere != "":
		return Kind{}, "", fmt.Errorf("for %s there is another command: %s", name, p.Kinds[at].Elsewhere)
	case at < 0 || !p.Kinds[at].fits(path, hasPath):
		return Kind{}, "", errors.New("a store is " + p.stores())
	}
	return p.Kinds[at], path, nil
}
