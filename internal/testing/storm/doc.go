// Package storm tests that backends meet the specification under random changes of
// Services and random faults, such as an agent that is killed, a ruleset that is flushed,
// objects that another program changes, and system calls that fail. Clients connect all
// the time.
//
// It has only tests. "make storm" runs them for longer, see CONTRIBUTING.md.
package storm
