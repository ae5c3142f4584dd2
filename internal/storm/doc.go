// Package storm holds backends to the specification while everything goes wrong that
// can: a random history of Services, and at the same time random faults, such as an
// agent that is killed, a ruleset that is flushed, objects that somebody else changes,
// and system calls that fail. Clients connect all the time.
//
// It has only tests. "make storm" runs them for longer; CONTRIBUTING.md says how.
package storm
