package proxy

import "time"

// backoff is the time to wait before a retry. It counts service ports
// that fail, and Applies that fail as a whole, separately. The time doubles while the
// same failure repeats, and starts at the first interval when another service port fails.
type backoff struct {
	// ports are the service ports that failed last, and portTries is how often they failed.
	ports     PortErrors
	portTries int
	// tries is how often Apply as a whole has failed in a row.
	tries int
}

// after returns the time to wait after an Apply, 0 if it succeeded.
func (b *backoff) after(a *Sync, first time.Duration) time.Duration {
	switch {
	case a.Err == nil:
		*b = backoff{}
		return 0
	case a.Refused == nil:
		b.tries++
		return doubled(first, b.tries-1)
	}
	b.tries = 0
	for name := range a.Refused {
		if _, before := b.ports[name]; !before {
			b.portTries = 0
		}
	}
	b.ports = a.Refused
	b.portTries++
	return doubled(first, b.portTries-1)
}

// doubled returns the time before the next retry, after the given number of retries: at most
// maxRetryInterval, unless first is longer.
func doubled(first time.Duration, times int) time.Duration {
	if first <= 0 {
		first = defaultRetryInterval
	}
	if first >= maxRetryInterval {
		return first
	}
	return min(first<<min(times, 20), maxRetryInterval)
}
