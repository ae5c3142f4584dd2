package iptables

import "github.com/vipkit/vipkit/proxy"

// NewFaulty returns a backend that passes each commit to around, which may call it or fail.
func NewFaulty(o Options, around func(commit func() error) error) (proxy.Backend, error) {
	return newBackend(o, around)
}
