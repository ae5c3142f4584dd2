// Package filestore keeps the claims of an allocator in a file.
//
// # The file
//
// The file is a log: a head, and a frame for each write. A frame has a mark, the
// length of what follows and its checksum, and holds all the changes that were
// committed together. A change counts once its frame is on the disk; commits that
// come while another one is being written share the next frame, and one wait for the
// disk.
//
// When the log has become more than twice as long as what it says needs, and by more
// than a megabyte, it is written anew, next to the old one, and takes its place in one
// step.
//
// # After a crash
//
// A frame that is torn at the end of the file was never acknowledged, and is cut off
// when the file is opened. Damage anywhere else cannot come from a crash: opening
// fails with [CorruptError], and changes nothing. That includes all that was on the
// disk before the file took its place, and the head says how long that is.
//
// # One process at a time
//
// A store locks a file beside its own, PATH.lock, until it is closed. The system
// frees the lock of a process that dies. On systems without a lock for a whole file,
// such as Solaris and AIX, no store can be opened.
package filestore
