// Package kinds lets backends of several kinds follow one another in a network namespace: each kind
// has default identities of its own, and what an ended instance of one kind has left under its
// default identity goes when an instance of another kind starts with defaults.
//
// A running instance with the default identity holds an abstract socket. Such sockets belong to the
// network namespace and end with their process, however it ends, so that every process in the
// namespace can tell whether the owner of an object is gone.
package kinds
