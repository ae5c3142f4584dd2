// Package pause waits for a while, or for the end of a context.
package pause
