// Package embedded tests agents of examples/kubeproxy that another program runs, with a real API server.
package embedded
