// Package allocatorcli is what the commands around an allocator have in common: the flags,
// the subcommands and the picture. A [Program] differs from another one in its kinds of
// stores, since each kind has its price in packages.
//
// The flag -h lists the subcommands; the documentation of the commands explains them.
// Without a subcommand, subcommands are read from standard input, a line each, while the
// store stays open.
//
// The exit status is 0 if all went well, 1 if a command failed, repair has found
// something that it could not mend or the program was interrupted, and 2 for bad
// flags.
package allocatorcli
