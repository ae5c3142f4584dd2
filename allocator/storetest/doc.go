// Package storetest tests stores of claims. [Run] checks any store against the contract of
// [allocator.Store]; call it from a test of your own store. [Owners] finds keys with two
// owners.
package storetest
