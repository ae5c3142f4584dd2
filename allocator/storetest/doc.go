// Package storetest tests stores of claims. [Run] checks any store against the contract of
// [allocator.Store]; call it from a test of your own store. The rest is for tests of code
// that uses stores: [Faulty] and [Mortal] inject the faults of stores, and [Owners] finds
// keys with two owners.
package storetest
