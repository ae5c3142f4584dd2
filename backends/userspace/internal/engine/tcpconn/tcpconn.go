package tcpconn

import "net"

// Buffers lends memory. Its methods may be called from several goroutines at once.
type Buffers interface {
	// Get lends a buffer.
	Get() *[]byte
	// Put takes a buffer back.
	Put(buf *[]byte)
}

// Direction is one direction of a relayed connection.
type Direction struct {
	From, To net.Conn
	// Ended says that From has sent everything, and that To was half-closed.
	Ended bool
	// Unsent was read from From, and not written to To yet. It is a part of Buffer, which
	// is nil where there is nothing unsent.
	Unsent []byte
	Buffer *[]byte
}

// Owner gets the events of a relayed connection.
type Owner interface {
	// Used is called after n bytes were received that are for one side.
	Used(to net.Conn, n int)
	// CloseWrite is called when the other side has sent everything. It half-closes to.
	CloseWrite(to net.Conn) error
}

// Option is an option of a socket.
type Option struct{ Level, Name, Value int }
