package endpoints

import (
	"errors"
	"fmt"
)

// FieldError says that the Cache cannot use a part of an EndpointSlice. It uses the
// rest.
type FieldError struct {
	// Field is the path of the part, such as endpoints[3].addresses[0].
	Field string
	// Err is the reason, with the part that the Cache does not use.
	Err error
}

// Error returns the field and the reason.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }

var (
	errRequired  = errors.New("required")
	errNoAddress = errors.New("no address")
	errNoPort    = errors.New("no port number")
)

// fieldErrors collects the errors of one slice.
type fieldErrors []error

// add adds the error of a field, and the part of the slice that the Cache therefore does
// not use.
func (c *fieldErrors) add(part string, err error, field string, args ...any) {
	*c = append(*c, &FieldError{
		Field: fmt.Sprintf(field, args...),
		Err:   fmt.Errorf("%w, %s not used", err, part),
	})
}

func (c fieldErrors) join() error { return errors.Join(c...) }
