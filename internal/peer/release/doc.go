// Package release has tests of what a release consists of: the comparison of APIs, and installing the
// agent.
package release
