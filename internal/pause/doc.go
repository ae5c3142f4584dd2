// Package pause waits for a duration, or for the end of a context.
package pause
