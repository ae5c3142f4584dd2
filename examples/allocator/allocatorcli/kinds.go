package allocatorcli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
)

// Kind is a kind of store that a program has.
type Kind struct {
	// Name is the value of -store, up to a colon.
	Name string
	// Path describes the value after the colon, such as "PATH"; "" for none.
	Path string
	// PathOptional says that the path may be missing.
	PathOptional bool
	// RangesOptional says that the store can have ranges of its own.
	RangesOptional bool
	// Elsewhere, unless "", is another command that has this kind of store.
	Elsewhere string
	// CommandTime bounds one command; 0 for no bound.
	CommandTime time.Duration
	// Open opens a store for the ranges of -range.
	Open func(ctx context.Context, path string, ranges []allocator.Config) (Opened, error)
}

// Opened is a store that is open.
type Opened struct {
	// Store is the open store.
	Store allocator.Store
	// Ranges are the ranges to allocate from.
	Ranges []allocator.Config
	// Unusable names further ranges that cannot be used; nil if there are none.
	Unusable error
	// Close closes the store; may be nil.
	Close func() error
}

// Memory is the kind that keeps claims until the program ends.
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

// stores lists the values of -store.
func (p Program) stores() string {
	var all []string
	for _, k := range p.Kinds {
		if k.Elsewhere == "" && (k.Path == "" || k.PathOptional) {
			all = append(all, k.Name)
		}
		if k.Elsewhere == "" && k.Path != "" {
			all = append(all, k.Name+":"+k.Path)
		}
	}
	text := strings.Join(all, ", ")
	if last := strings.LastIndex(text, ", "); last >= 0 {
		return text[:last] + " or " + text[last+len(", "):]
	}
	return text
}

// kind returns the kind and the path of a value of -store.
func (p Program) kind(text string) (Kind, string, error) {
	name, path, hasPath := strings.Cut(text, ":")
	for _, k := range p.Kinds {
		switch {
		case k.Name != name:
		case k.Elsewhere != "":
			return Kind{}, "", fmt.Errorf("%s needs another command: %s", name, k.Elsewhere)
		case path != "" && k.Path != "", !hasPath && (k.Path == "" || k.PathOptional):
			return k, path, nil
		}
	}
	return Kind{}, "", errors.New("want " + p.stores())
}
