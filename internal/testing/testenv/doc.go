// Package testenv provides helpers for all tests: random numbers that a seed repeats,
// skipping, and closing at the end of a test.
package testenv
