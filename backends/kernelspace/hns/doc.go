// Package hns is the binding of [hcn.Client] to HNS, the Host Networking Service of Windows Server
// 2019 and later. It is what an agent gives to backend kernelspace:
//
//	client, err := hns.Open()
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//
// [Open] reports [hcn.ErrUnsupported] on other operating systems, so that an agent needs no file for
// each of them. The binding was tried with a simulated HNS, under Wine, and not on a Windows host.
//
// # Other bindings
//
// Microsoft's packages hnslib and hcsshim bind the same functions. This one is the default because
// it does less: it needs golang.org/x/sys alone; it lists IDs, so that an object that vanishes
// meanwhile fails no list; it deletes by ID without a list and a query before; it closes what it
// opened on every path, and takes notifications and contexts. An agent that has hnslib already can
// put it in the place of this package: the comment of package hcn says what a type must do that
// implements [hcn.Client].
//
// # How it works
//
// Each method calls one function of computenetwork.dll, and those that open, query and close the
// object. [Client] is the same on all operating systems and is tested on all; one file calls the
// functions, from the libraries in the folder System32 and nowhere else. JSON documents have
// schema version 2.0.
package hns
