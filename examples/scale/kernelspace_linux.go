package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/proxy"
)

// callReport has the calls of the simulated HNS.
type callReport struct {
	ColdCalls       int     `json:"coldCalls,omitempty"`
	CallsPerChange  float64 `json:"callsPerChange,omitempty"`
	NothingNewCalls *int    `json:"nothingNewCalls,omitempty"`
	NothingNewUs    float64 `json:"nothingNewUs,omitempty"`
	RestartCalls    int     `json:"restartCalls,omitempty"`
}

// simulated is a simulated HNS. Its calls take no time, so that times are those of the backend.
type simulated struct {
	hns     *hcntest.Sim
	options kernelspace.Options
}

const networkName = "l2bridge0"

func newSimulated(folder string) *simulated {
	s := &simulated{hns: hcntest.New(hcn.Version{Major: 16}, address(0))}
	s.hns.AddNetwork(hcn.Network{Name: networkName, Type: "L2Bridge"})
	s.options = kernelspace.Options{
		Network: networkName, SourceVIPs: []netip.Addr{address(1)}, StateFile: filepath.Join(folder, "state"),
	}
	return s
}

func (s *simulated) bench(o options) (*bench, error) {
	made, err := kernelspace.New(s.hns, s.options)
	if err != nil {
		return nil, err
	}
	return benchOf(o, made), nil
}

// measureSimulated measures the backend for Windows, in one process: the simulated HNS ends with it.
func measureSimulated(r *report) (err error) {
	folder, err := os.MkdirTemp("", "scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	empty := r.options
	empty.Services = 0
	b, err := newSimulated(folder).bench(empty)
	if err != nil {
		return err
	}
	if _, r.EmptyMs, err = b.start(); err != nil {
		return err
	}
	s := newSimulated(folder)
	if b, err = s.bench(r.options); err != nil {
		return err
	}
	if r.LoadMs, r.ColdMs, err = b.start(); err != nil {
		return err
	}
	r.ColdCalls = s.hns.Total()
	if err := s.nothingNew(b, r); err != nil {
		return err
	}
	before := s.hns.Total()
	replaced := b.replaceEndpoints(r)
	r.CallsPerChange = float64(s.hns.Total()-before) / float64(len(replaced))
	if err := b.changes(r); err != nil {
		return err
	}
	if r.RSSMiB, err = peakRSS(); err != nil {
		return err
	}
	r.Elements = len(s.hns.Endpoints()) + len(s.hns.LoadBalancers())
	return s.restart(b, r)
}

// nothingNew measures an Apply of the same snapshot.
func (s *simulated) nothingNew(b *bench, r *report) error {
	before, start := s.hns.Total(), time.Now()
	err := b.backend.Apply(context.Background(), b.snapshot, b.snapshot)
	r.NothingNewUs = float64(time.Since(start).Nanoseconds()) / 1000
	calls := s.hns.Total() - before
	r.NothingNewCalls = &calls
	return err
}

// restart measures a new backend that adopts what an earlier one has made.
func (s *simulated) restart(b *bench, r *report) error {
	next, err := s.bench(r.options)
	if err != nil {
		return err
	}
	before, start := s.hns.Total(), time.Now()
	err = next.backend.Apply(context.Background(), proxy.Snapshot{}, b.snapshot)
	r.RestartMs, r.RestartOps, r.RestartCalls = milliseconds(time.Since(start)), next.operations(), s.hns.Total()-before
	return err
}
