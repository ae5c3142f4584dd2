// Package release has tests of what a release consists of: the comparison of APIs.
package release
