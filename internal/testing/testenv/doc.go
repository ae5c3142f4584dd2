// Package testenv provides helpers for all tests: random numbers that a seed repeats,
// skipping, timeouts for a busy machine, and closing at the end of a test.
package testenv
