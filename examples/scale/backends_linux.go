package main

import (
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// measured is a backend whose operations can be counted.
type measured interface {
	proxy.Backend
	proxy.OperationCounter
}

// backend is a choice of the flag -backend.
type backend struct {
	open func() (proxy.Backend, error)
	// count asks the kernel how much of IPv4 there is.
	count func() (int, error)
}

const nftablesBackend = "nftables"

func backends() map[string]backend {
	return map[string]backend{
		nftablesBackend: {func() (proxy.Backend, error) { return nftables.New(nftables.Options{}) }, countElements},
		"iptables":      {func() (proxy.Backend, error) { return iptables.New(iptables.Options{}) }, countRules},
		"userspace":     {func() (proxy.Backend, error) { return userspace.New(userspace.Options{}) }, countElements},
	}
}

func backendNames() string { return strings.Join(slices.Sorted(maps.Keys(backends())), ", ") }

// openBackend makes a backend for the network namespace of the calling thread.
func openBackend(name string) (measured, error) {
	b, err := backends()[name].open()
	if err != nil {
		return nil, err
	}
	m, ok := b.(measured)
	if !ok {
		return nil, fmt.Errorf("backend %s does not count its operations", name)
	}
	return m, nil
}

// countRules counts the rules of iptables.
func countRules() (int, error) {
	out, err := exec.Command("iptables-save").Output()
	if err != nil {
		return 0, fmt.Errorf("iptables-save: %w", err)
	}
	return bytes.Count(out, []byte("\n-A ")), nil
}
