package nftables

import (
	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty returns a backend that passes each commit to around, which may call it or fail.
func NewFaulty(options Options, around func(commit func() error) error) (proxy.Backend, error) {
	k, err := newKernel(options)
	if err != nil {
		return nil, err
	}
	return newBackend(k, backendtest.Faulty[key, value](k, around))
}
