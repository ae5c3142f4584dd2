// Package differential holds tests that compare the model of this repository with the
// one inside kube-proxy: both are told the same random histories of Services,
// EndpointSlices and Nodes, and after every step must say the same about every port of
// every Service.
//
//	go test -count=1 -v ./differential
//	VIPKIT_SEED=42 VIPKIT_HISTORIES=100000 go test -count=1 -v ./differential
//
// Where this repository differs by decision, a function with a name says so and why.
// It changes what is expected, from what kube-proxy says to what was decided, so that
// any further difference still is an error. How often each of them was needed is in the
// log of the test, and one that was never needed fails it.
package differential
