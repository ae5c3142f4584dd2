//go:build !unix && !windows

package filestore

import "errors"

type lock struct{}

func acquire(string) (*lock, error) { return nil, errors.ErrUnsupported }

func (*lock) release() error { return nil }

func syncFolder(string) error { return nil }
