package hcn

import (
	"errors"
	"fmt"
)

// What errors of the service mean.
var (
	// ErrNotFound: the object does not exist.
	ErrNotFound = errors.New("object not found")
	// ErrExists: an object with this name, address or port exists already.
	ErrExists = errors.New("object already exists")
	// ErrUnsupported: this version of the service cannot do it. It wraps [errors.ErrUnsupported].
	ErrUnsupported = fmt.Errorf("%w in this version of HNS", errors.ErrUnsupported)
	// ErrUnavailable: the service does not run.
	ErrUnavailable = errors.New("HNS is not running")
)

// Error is an error that the service returned. It wraps one of the errors above if its code is
// known.
type Error struct {
	// Op is the function of the API, such as HcnCreateLoadBalancer.
	Op string
	// Code is the HRESULT.
	Code uint32
	// Record is the error record that came with it; empty if there was none.
	Record string
}

// Codes of errors.
const (
	CodeNetworkNotFound   = 0x803b0001 // no such network
	CodeEndpointNotFound  = 0x803b0002 // no such endpoint
	CodePortNotFound      = 0x803b0007 // no such port of the switch
	CodeNetworkExists     = 0x803b0010 // the network exists
	CodePortExists        = 0x803b0013 // the port exists
	CodeUnsupported       = 0x803b0015 // the request is not supported
	CodeManagerStopped    = 0x803b0020 // the service is ending
	CodeHasReferences     = 0x803b002c // other objects refer to the object
	CodeElementNotFound   = 0x80070490 // no such object
	CodeAlreadyExists     = 0x800700b7 // the object exists
	CodeObjectExists      = 0x80071392 // the object exists, of endpoints
	CodeInvalidParameter  = 0x80070057 // a field is invalid
	CodeAccessDenied      = 0x80070005 // access is denied
	CodeNotImplemented    = 0x80004001 // not implemented
	CodeNotSupported      = 0x80070032 // not supported
	CodeRPCUnknown        = 0x800706b5 // the interface of the service is unknown
	CodeRPCUnavailable    = 0x800706ba // the server is unavailable
	CodeServiceNotRunning = 0x80070426 // the service does not run
)

// Error implements error.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: error %#08x", e.Op, e.Code)
	if meaning := e.meaning(); meaning != nil {
		text += ": " + meaning.Error()
	}
	if e.Record != "" {
		text += ": " + e.Record
	}
	return text
}

// Unwrap returns what the code means; nil if that is not known.
func (e *Error) Unwrap() error { return e.meaning() }

func (e *Error) meaning() error {
	switch e.folded() {
	case CodeNetworkNotFound, CodeEndpointNotFound, CodePortNotFound, CodeElementNotFound:
		return ErrNotFound
	case CodeNetworkExists, CodePortExists, CodeAlreadyExists, CodeObjectExists:
		return ErrExists
	case CodeUnsupported, CodeNotImplemented, CodeNotSupported:
		return ErrUnsupported
	case CodeManagerStopped, CodeRPCUnknown, CodeRPCUnavailable, CodeServiceNotRunning:
		return ErrUnavailable
	}
	return nil
}

// folded returns the code as an HRESULT: a plain code of Win32, such as 0x6b5, gets its facility.
func (e *Error) folded() uint32 {
	if e.Code != 0 && e.Code <= 0xffff {
		return e.Code | 0x80070000
	}
	return e.Code
}
