// Package filestore keeps the claims of an allocator in a file.
//
// # The file
//
// The file is a log: a header, and a frame for each write. A frame has a mark, the
// length of what follows and its checksum, and holds all the changes that were
// committed together. A change counts once its frame is on the disk; commits that
// come while another one is being written share the next frame, and one wait for the
// disk.
//
// When the log has become much longer than what it says, it is written anew, next to
// the old one, and takes its place in one step.
//
// # After a crash
//
// A frame that is torn at the end of the file was never acknowledged, and is cut off
// when the file is opened. Damage anywhere else cannot come from a crash: opening
// fails with [CorruptError], and changes nothing.
//
// # One process at a time
//
// A store locks a file beside its own, PATH.lock, until it is closed. The system
// frees the lock of a process that dies.
package filestore
