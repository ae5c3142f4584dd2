// Package stagetest has helpers for the tests of backends that program netfilter: service
// ports that are not made from API objects, a network namespace with a backend in it, and
// a client and servers on either side of it.
package stagetest
