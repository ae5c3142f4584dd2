// Package storetest is what every store of claims must pass: a suite for what
// [allocator.Store] promises, a wrapper that makes a store fail in all the ways in
// which stores do, and a world of allocators that share one such store.
package storetest
