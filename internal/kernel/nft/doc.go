// Package nft is shared by all backends that write nf_tables rules. It is based on the
// transactions of package nfnetlink:
//
//   - [Assembler] writes the rules of a chain, statement by statement;
//   - [Chain] is a chain to write, whose rules carry tags by which [Conn.Chains]
//     recognizes them later;
//   - [Conn] reads and commits tables, notices commits of other programs, and translates
//     errors to errors of package backends.
//
// It works on Linux only.
package nft
