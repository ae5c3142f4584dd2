// Package nearest finds the known name that a misspelled one most likely means.
package nearest
