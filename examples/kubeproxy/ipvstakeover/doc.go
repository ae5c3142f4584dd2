// Package ipvstakeover takes over from kube-proxy's mode ipvs, which must not run any more.
//
// On systems other than Linux its functions do nothing.
package ipvstakeover
