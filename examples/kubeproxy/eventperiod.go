package main

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// The API server forgets an Event after an hour, by default. As long as its cause is there, it is written again
// in each period. Nodes have the same periods for a cause, so that they share its Events, and other ones for
// other causes, so that not all are due together. Clocks of nodes need not agree: at worst an Event is written
// a second time.
const (
	eventPeriod = 50 * time.Minute
	// eventJitter is within which a node tries after a period has begun. No period that begins sooner
	// than that after an Event counts, so at most an hour is between two.
	eventJitter = 5 * time.Minute
	// againPause is the least time between two Events of a node that are written again.
	againPause = time.Minute
)

// period returns the number of the period of a cause at a time.
func (c *cause) period(at time.Time) int64 { return at.Add(c.phase()).UnixNano() / int64(eventPeriod) }

// phase shifts the periods of a cause, by a part of one.
func (c *cause) phase() time.Duration {
	sum := fnv.New64a()
	for _, part := range [...]string{c.kind, c.Namespace, c.Name, c.reason, c.about} {
		_, _ = sum.Write(append([]byte(part), 0)) // It never fails.
	}
	return time.Duration(sum.Sum64() % uint64(eventPeriod))
}

// nextPeriod returns when this node writes the Event of a cause again, after it was written at a time.
func (c *cause) nextPeriod(written time.Time) time.Time {
	begins := c.period(written.Add(eventJitter)) + 1
	return time.Unix(0, begins*int64(eventPeriod)).Add(rand.N(eventJitter) - c.phase())
}
