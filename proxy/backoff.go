package proxy

import (
	"errors"
	"time"
)

// backoff says how long to wait before a failure is tried again. It counts service ports
// that fail, and Applies that fail as a whole, separately. The time doubles while the
// same failure repeats, and starts anew when another service port fails.
type backoff struct {
	// ports are the service ports that failed last, and portTries how often they did.
	ports     PortErrors
	portTries int
	// tries is how often Apply as a whole has failed in a row.
	tries int
}

// failing reports whether there is something to try again.
func (b *backoff) failing() bool { return b.tries > 0 || b.portTries > 0 }

// after gives the time to wait after an Apply that ended with err.
func (b *backoff) after(err error, first time.Duration) time.Duration {
	var partial PortErrors
	switch {
	case err == nil:
		*b = backoff{}
		return 0
	case errors.Is(err, ErrDataplaneLost) || !errors.As(err, &partial):
		b.tries++
		return doubled(first, b.tries-1)
	}
	b.tries = 0
	for name := range partial {
		if _, before := b.ports[name]; !before {
			b.portTries = 0
		}
	}
	b.ports = partial
	b.portTries++
	return doubled(first, b.portTries-1)
}

// doubled gives the time before a retry, after so many others.
func doubled(first time.Duration, times int) time.Duration {
	if first <= 0 {
		first = DefaultRetryInterval
	}
	if first >= MaxRetryInterval {
		return first
	}
	return min(first<<min(times, 20), MaxRetryInterval)
}
