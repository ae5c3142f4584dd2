// Package netfilter captures the traffic of Services by nf_tables: packets to frontends
// are marked, and TPROXY delivers them to the listeners of the backend with their
// destination unchanged; or, for redirect, their destination is translated to a listener.
// The documentation of package userspace has a picture of the chains.
//
// A routing rule selects, for marked packets, a table in which every address is local. Routes in
// the table of local addresses make those addresses local to which destinations are translated.
package netfilter
