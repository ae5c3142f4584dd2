package affinity

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Limits of the timeout in the Kubernetes API.
const (
	// DefaultTimeout is the timeout of a Service with ClientIP affinity and
	// without a timeout.
	DefaultTimeout = 3 * time.Hour
	// MaxTimeout is the longest timeout that the API accepts.
	MaxTimeout = 24 * time.Hour
)

// Config is the session affinity of a service port. The zero Config is none.
// It is a comparable value.
type Config struct {
	// Timeout is how long after its last new connection a client address
	// keeps its endpoint. Zero means that there is no affinity.
	Timeout time.Duration
}

// Enabled reports whether clients keep their endpoints.
func (c Config) Enabled() bool { return c.Timeout > 0 }

// FromService reads the session affinity of a Service. A missing
// sessionAffinityConfig means [DefaultTimeout]. For values that the API would refuse, an
// unknown kind of affinity or a timeout out of bounds, it returns a [FieldError] and a
// valid Config, so that a caller can report the error and use the Config.
func FromService(spec *v1.ServiceSpec) (Config, error) {
	switch spec.SessionAffinity {
	case "", v1.ServiceAffinityNone:
		return Config{}, nil
	case v1.ServiceAffinityClientIP:
	default:
		return Config{}, &FieldError{Field: "spec.sessionAffinity", Err: fmt.Errorf("unknown kind %q", spec.SessionAffinity)}
	}
	c := spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return Config{Timeout: DefaultTimeout}, nil
	}
	timeout := time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	switch {
	case timeout <= 0:
		return Config{Timeout: DefaultTimeout}, outOfBounds(timeout)
	case timeout > MaxTimeout:
		return Config{Timeout: MaxTimeout}, outOfBounds(timeout)
	}
	return Config{Timeout: timeout}, nil
}

func outOfBounds(timeout time.Duration) error {
	return &FieldError{
		Field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
		Err:   fmt.Errorf("%v is not within 1s and %v", timeout, MaxTimeout),
	}
}
