package affinity

import "time"

// DefaultTimeout is the timeout of a Service with ClientIP affinity and without a timeout.
const DefaultTimeout = 3 * time.Hour

// Config is the session affinity of a service port. The zero Config is none.
// It is a comparable value.
type Config struct {
	// Timeout is how long after its last new connection a client address
	// keeps its endpoint. Zero means that there is no affinity.
	Timeout time.Duration
}

// Enabled reports whether clients keep their endpoints.
func (c Config) Enabled() bool { return c.Timeout > 0 }
