// Package neterr says what errors of sockets are about. The operating systems have different
// numbers for the same errors; on Windows, the names of Unix in package syscall are not the names of
// the errors that sockets return.
package neterr
