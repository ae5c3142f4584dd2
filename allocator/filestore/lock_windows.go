package filestore

import (
	"errors"
	"fmt"
	"syscall"
)

// lock excludes other processes. The system releases it when this process ends.
type lock struct{ handle syscall.Handle }

// sharingViolation is the error of opening a file that another process does not share.
const sharingViolation = syscall.Errno(32)

// acquire opens a file without sharing it.
func acquire(path string) (*lock, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	handle, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, sharingViolation) {
		err = ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &lock{handle}, nil
}

func (l *lock) release() error { return syscall.CloseHandle(l.handle) }

// syncFolder does nothing: Windows cannot flush a folder.
func syncFolder(string) error { return nil }
