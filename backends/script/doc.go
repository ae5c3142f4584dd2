// Package script makes backends of programs that read scripts from their standard
// input, and carry out all of one or nothing of it, such as nft -f -. What is left to
// write is the text of each kernel object: [Target] is the other half of what
// [github.com/vipkit/vipkit/backends.New] asks for.
//
// It does not read back what is in the kernel. A restart makes everything anew.
package script
