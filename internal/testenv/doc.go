// Package testenv is what tests and the machine that they run on agree about:
// random numbers that can be repeated, and what becomes of a test that cannot
// run.
package testenv
