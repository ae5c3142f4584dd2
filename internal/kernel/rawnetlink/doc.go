// Package rawnetlink encodes and exchanges netlink messages: what nf_tables needs beyond packages for
// netlink, whose messages take an allocation for each attribute. A [Listener] waits for notifications
// until a context ends.
package rawnetlink
