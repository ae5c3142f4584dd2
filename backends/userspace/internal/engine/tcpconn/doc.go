// Package tcpconn has TCP connections for a proxy that opens and closes many of them.
// They exist on Linux; elsewhere its functions leave connections of package net as they
// are, so that callers need no build tags.
//
// # What it gains
//
// Package net registers each connection with epoll as soon as it exists and notifies the Go
// scheduler of each system call, and a proxy needs two goroutines for each connection. This
// package registers a connection with epoll only when a goroutine has to wait for it, makes
// raw system calls on nonblocking sockets, and [Exchange] relays requests and answers with
// one goroutine.
//
// In the same engine, in the same run, beside net.TCPConn: 15 % more new connections a
// second for one client, 21 % for two and 31 % for eight clients at once (medians of ten
// runs), with two thirds of the processor time for each, and half of the memory for a silent
// connection. Bulk data gains nothing: both splice. The figures and the machine are in
// docs/performance.md. To measure again (haproxy must be installed):
//
//	go test -tags measure -v -run 'TestMeasure$' ./backends/userspace/internal/engine
//
// If net.TCPConn of a later version of Go makes within 15 % as many new connections, it
// should replace this package.
//
// # Use
//
// A [Poller] belongs to the connections that it makes: by [Poller.Listen], by
// [Poller.Connect] from a socket that [Begin] made, and by [Poller.Adopt] from a
// connection of package net. It must be closed after them. One goroutine at a time may
// read a connection, one may write, and any may close it.
package tcpconn
