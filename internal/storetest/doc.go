// Package storetest is what every store of claims must pass: a suite for what
// [allocator.Store] promises, a wrapper that makes a store fail in all the ways in
// which stores do, and what knows whether a key has two owners.
package storetest
