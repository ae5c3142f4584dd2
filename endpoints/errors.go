package endpoints

import (
	"errors"
	"fmt"
)

// FieldError says that a part of an EndpointSlice cannot be used. The rest of
// the slice is.
type FieldError struct {
	// Field is the path of the part, such as endpoints[3].addresses[0].
	Field string
	// Err says what is wrong with it, and what is not used therefore.
	Err error
}

// Error gives the field and what is wrong with it.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap gives what is wrong with the field.
func (e *FieldError) Unwrap() error { return e.Err }

var (
	errRequired  = errors.New("required")
	errNoAddress = errors.New("no address")
	errNoPort    = errors.New("no port number")
)

// complaints collects what is wrong with one slice.
type complaints []error

// add says what is wrong with a field, and which part of the slice therefore is
// not used.
func (c *complaints) add(part string, err error, field string, args ...any) {
	*c = append(*c, &FieldError{
		Field: fmt.Sprintf(field, args...),
		Err:   fmt.Errorf("%w, %s not used", err, part),
	})
}

func (c complaints) join() error { return errors.Join(c...) }
