package main

import (
	"slices"
	"time"
)

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// percentile gives the p-th percentile in microseconds.
func percentile(durations []time.Duration, p int) float64 {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	at := min(len(sorted)*p/100, len(sorted)-1)
	return float64(sorted[at].Nanoseconds()) / 1000
}
