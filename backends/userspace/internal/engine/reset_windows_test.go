package engine

import "syscall"

// connectionReset is the error of a connection that the peer has reset.
const connectionReset = syscall.WSAECONNRESET
