// Package differential tests what [proxy.Route] cannot say about the backends of this module: what happens
// when one follows another one or runs beside it. It has tests only.
package differential
