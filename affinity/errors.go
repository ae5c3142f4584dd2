package affinity

// FieldError is a field of a Service that the API would refuse, and the reason.
type FieldError struct {
	// Field is the path of the field, such as spec.sessionAffinity.
	Field string
	// Err is the reason.
	Err error
}

// Error returns the field and the reason.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }
