//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package filestore

import (
	"errors"
	"fmt"
	"runtime"
)

// lock is not to be had here, so no store can be opened.
type lock struct{}

func acquire(path string) (*lock, error) {
	return nil, fmt.Errorf("%s: %s has no lock for a whole file: %w", path, runtime.GOOS, errors.ErrUnsupported)
}

func (*lock) release() error { return nil }

func syncFolder(string) error { return nil }
