// Package windows tests examples/kubeproxy as a program of Windows, under Wine, with a real API server.
//
// With a simulated HNS, HNS must have what the backend kernelspace puts into another one for the same
// objects, after changes of objects and after the program was killed. In mode userspace it serves real
// connections: it runs in a network namespace, and its netsh adds addresses to an interface there.
//
// It works on Linux only, with Debian's Wine and a C compiler for Windows.
package windows
