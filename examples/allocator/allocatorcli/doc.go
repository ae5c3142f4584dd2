// Package allocatorcli has the flags and subcommands that the allocator commands share. Each
// [Program] has its own kinds of stores, since a kind may need many packages.
//
// The flag -h lists the subcommands; the documentation of the commands explains them.
// Without a subcommand the program reads subcommands from standard input, one in each line,
// while the store stays open.
//
// The exit status is 0 for success, 1 if a command failed, repair found something that
// it could not repair or the program was interrupted, and 2 for bad flags.
//
// The package belongs to these commands; its API may change with any version.
package allocatorcli
