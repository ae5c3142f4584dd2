// Package hcnschema reads and writes the JSON documents of the HCN API, schema version 2.0, and the
// version that HNS tells. A binding and a simulated service both use it.
//
// Reading is lenient about what package hcn does not know, because the objects of other programs
// are read too: unknown fields, policies and flags are left out, and so is an address that is none.
// Of the VIPs of a load balancer such an address stays as the zero Addr, because a load balancer
// without VIPs is one of the node's addresses.
package hcnschema
