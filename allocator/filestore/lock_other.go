//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package filestore

import (
	"errors"
	"fmt"
	"runtime"
)

// lock is unsupported on this system, so no store can be opened.
type lock struct{}

func acquire(path string) (*lock, error) {
	return nil, fmt.Errorf("%s: %s cannot lock a whole file: %w", path, runtime.GOOS, errors.ErrUnsupported)
}

func (*lock) release() error { return nil }

func syncFolder(string) error { return nil }
