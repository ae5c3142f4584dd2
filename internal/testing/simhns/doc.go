// Package simhns offers a [hcntest.Sim], or any other hcn.Client, as computenetwork.dll offers HNS:
// by the functions of its C API, with handles and JSON documents. A binding is tested against it on
// every operating system.
//
// [Service.Serve] carries the calls over TCP. The library .ci/wine/computenetwork.c, which stands in
// for computenetwork.dll and vmcompute.dll under Wine, passes on to it whatever a program calls. So
// the simulated service outlives the program, and belongs to the test that serves it.
package simhns
