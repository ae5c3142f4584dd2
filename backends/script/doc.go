// Package script makes backends of programs that read a script from standard input and
// carry out all of it or nothing, such as nft -f -. A backend has to provide only the text
// of each kernel object: [Target] is the target that [github.com/vipkit/vipkit/backends.New]
// needs beside that.
//
// Target does not read the objects in the kernel. A restart makes all of them again.
package script
