// Package journal keeps a set of strings in a file, so that the next process has it, also after a
// crash. A change appends a line, and costs the same however large the set is.
//
// Each line has one string and a checksum; a minus sign before the string says that the set does
// not have it any more:
//
//	10.96.0.10 5ac7f1e0
//	-10.96.0.10 0b1d2c3f
//
// A last line without its end was being written when the process or the system ended. It does not
// count. If the file has many more lines than the set has strings, it is replaced in one step by
// one of the set.
package journal
