//go:build !unix

package health

import "math"

// descriptors returns the limit of file descriptors of the process: there is none.
func descriptors() int { return math.MaxInt32 }
