package ipset

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors of ipset, beyond those of the system.
const (
	errnoProtocol    unix.Errno = 4097
	errnoFindType    unix.Errno = 4098
	errnoMaxSets     unix.Errno = 4099
	errnoBusy        unix.Errno = 4100
	errnoCIDR        unix.Errno = 4104
	errnoFamily      unix.Errno = 4106
	errnoReferenced  unix.Errno = 4108
	errnoIPv4        unix.Errno = 4109
	errnoIPv6        unix.Errno = 4110
	errnoSkbInfo     unix.Errno = 4114
	errnoFull        unix.Errno = 4352
	errnoElement     unix.Errno = 4353
	errnoBadProtocol unix.Errno = 4354
	errnoNoProtocol  unix.Errno = 4355
)

// meaning gives the error of a request its meaning.
func meaning(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case unix.ENOENT:
		return ErrNotExist
	case errnoFull:
		return ErrFull
	case errnoBusy, errnoReferenced:
		return ErrInUse
	case errnoFindType:
		return fmt.Errorf("type of the set: %w", ErrUnsupported)
	default:
		if text := text(errno); text != "" {
			return fmt.Errorf("%s (%w)", text, errno)
		}
		return err
	}
}

func text(errno unix.Errno) string {
	switch errno {
	case errnoProtocol:
		return "the kernel does not understand the request: the entry does not suit the type of the set"
	case errnoMaxSets:
		return "the kernel has no room for more sets"
	case errnoCIDR:
		return "the length of the network is invalid"
	case errnoFamily:
		return "the type of the set has no such family"
	case errnoIPv4:
		return "an IPv4 address is missing"
	case errnoIPv6:
		return "an IPv6 address is missing"
	case errnoSkbInfo:
		return "the set has no marks"
	case errnoElement:
		return "the kernel does not store such an entry"
	case errnoBadProtocol:
		return "the protocol is invalid"
	case errnoNoProtocol:
		return "the protocol is missing"
	default:
		return ""
	}
}
