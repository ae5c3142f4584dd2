// Package windows tests examples as programs of Windows, under Wine.
//
// examples/kubeproxy runs with a real API server and a simulated HNS: HNS must have what the backend
// kernelspace puts into another one for the same objects, after changes of objects and after the
// program was killed. examples/manifestproxy serves real connections with the backend userspace: it
// runs in a network namespace, and its netsh adds addresses to an interface there.
//
// It works on Linux only, with Debian's Wine and a C compiler for Windows.
package windows
