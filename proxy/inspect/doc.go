// Package inspect shows people what a dataplane holds, and answers why a packet goes
// where it goes.
//
// The page that [Handler] serves lists service ports with their frontends and
// endpoints, what is wrong with API objects, and the [proxy.Verdict] about a packet,
// with its reasons. It shows what not everybody may see, so whoever serves it decides
// who gets it.
package inspect
