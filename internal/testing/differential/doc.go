// Package differential compares all backends of this module with each other and with
// the specification, on real kernels. It has tests only.
package differential
