package testenv

import "time"

// DialTimeouts returns how long a proxy under test waits for an endpoint at each try. A busy machine
// can need longer than the defaults of a proxy. The proxy would then take a working endpoint for a dead
// one, and a client would lose its affinity.
func DialTimeouts() []time.Duration { return []time.Duration{5 * time.Second, 5 * time.Second} }
