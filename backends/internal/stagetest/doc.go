// Package stagetest gives the tests of backends that program netfilter what they
// act on and where: service ports that do not come from API objects, a network
// namespace with a backend in it, and a client and servers on either side of that.
package stagetest
