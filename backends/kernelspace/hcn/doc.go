// Package hcn is what backend kernelspace needs of the Windows Host Compute Network service
// (HNS, API HCN): its objects as plain structs, its errors, and [Client], the interface that a
// binding implements. The package imports nothing of Windows, so that everything above it runs
// and is tested on every operating system.
//
// # Writing a binding
//
// A binding is one type that implements [Client]. It needs no state but what notifications take,
// and decides nothing:
//
//   - Each method is one call of the API, with the open, query and close that the call needs.
//     It keeps no cache, retries nothing and never lists in order to find: the backend does that.
//   - Handles and buffers are freed before a method returns, also after an error.
//   - IDs are GUIDs in lower case without braces, in both directions.
//   - An error of HNS is returned as an [*Error] with the HRESULT as HNS gave it; [Error.Unwrap] knows
//     what the codes mean. An error record with content is an error even if the HRESULT is S_OK.
//     Other errors, such as one for a reply that is not valid JSON, are returned as they are.
//   - Unknown fields, policies and flags of objects are left out. An object that lacks a list,
//     such as a load balancer without port mappings, is returned without it.
//   - Methods may be called from any goroutine; calls other than [Host.Wait] do not overlap.
//   - The API of HNS has no timeouts. A method that is called with a context that has ended
//     returns its error without a call; one whose context ends meanwhile may return the context's
//     error before HNS has answered. The backend then takes the outcome as unknown.
//
// Code that makes a binding closes it, if it has something to close, after the backend that uses it
// was closed. The backend closes no Client.
package hcn
