// Package differential has tests that compare the model of this repository with that of
// kube-proxy: both get the same random histories of Services, EndpointSlices and Nodes, and
// after every step must have the same result for every port of every Service.
//
//	go test -count=1 -v ./differential
//	VIPKIT_SEED=42 VIPKIT_HISTORIES=100000 go test -count=1 -v ./differential
//
// Each difference by decision is a function whose comment says why. It changes the expected
// result from that of kube-proxy to what was decided, so that any other difference is an
// error. The log of the test has how often each decision was needed; a decision that was
// never needed fails the test.
package differential
