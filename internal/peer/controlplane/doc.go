// Package controlplane runs a real control plane for tests: etcd and a kube-apiserver
// on loopback, in a temporary folder, for as long as the test runs.
//
//	cp := controlplane.Start(t, controlplane.Options{})
//	client := kubernetes.NewForConfigOrDie(cp.Config())
//
// The API server is built from the module k8s.io/kubernetes that this module requires. The
// first build takes minutes; the cache of the go command keeps the program. etcd must be
// installed. No controllers and no kubelets run: tests do their work themselves.
//
// It works on Linux only.
package controlplane
