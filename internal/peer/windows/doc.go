// Package windows tests examples as programs of Windows, under Wine.
//
// examples/kubeproxy runs with a real API server and a simulated HNS: HNS must have what the backend
// kernelspace puts into another one for the same objects, after changes of objects and after the
// program was killed.
//
// It works on Linux only, with Debian's Wine and a C compiler for Windows.
package windows
