// Package filestore keeps the claims of an allocator in a file.
//
// # The file
//
// The file is a log: a header, and a frame for each write. A frame has a mark, the
// length and the checksum of its body, and the changes that were committed together. A
// change counts once its frame is on the disk. Commits that begin while another one is
// being written share the next frame, and one sync of the disk.
//
// When the log is more than a megabyte longer than twice its live claims, the store
// writes a new log beside the old one, and renames it over the old one.
//
// # After a crash
//
// A torn frame at the end of the file was never acknowledged; opening the file truncates
// it. Damage anywhere else cannot come from a crash: opening fails with [CorruptError],
// and changes nothing. That includes the frames that were on the disk before the file
// was renamed; the header has their length.
//
// # When a write fails
//
// If the disk is full, a commit fails with the error of the system, and nothing is written: the store
// truncates the frame that it could not complete. The next commit is written as soon as there is
// room. If the file cannot be truncated either, every call fails until that succeeds: until
// then it is unknown whether a crash would leave the frame.
//
// # One process at a time
//
// A store locks a file beside its own, PATH.lock, until it is closed. The system
// releases the lock when the process ends. On systems that cannot lock a whole file,
// such as Solaris and AIX, no store can be opened.
package filestore
