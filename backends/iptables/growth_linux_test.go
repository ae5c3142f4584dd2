package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The backend changes from any size to any other, around the number of rules that are removed one by one, with
// faults and after restarts. A restart that takes over what it wants writes nothing.
func TestGrowth(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		NeedLargeTransactions(t, s.Options.Flavour)
		d := &stagetest.Disturbance{
			Refusals: []error{context.DeadlineExceeded, backends.ErrUnavailable, errors.New("line 2 failed")},
			Unknown:  fmt.Errorf("%w: the program was killed", proxy.ErrDataplaneLost),
			Flush: func() {
				s.run(t, "*nat\n-F\nCOMMIT\n*filter\n-F\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
			},
		}
		stagetest.Growth{
			Sizes: append(stagetest.SizesAround(xtables.ManyRemovals, 2*xtables.ManyRemovals), 1100),
			Steps: 60,
			New: func() (b proxy.Backend, err error) {
				err = s.NS.Do(func() error { b, err = NewFaulty(s.Options, d.Around); return err })
				if c, ok := b.(io.Closer); ok {
					testenv.CloseAtEnd(t, c)
				}
				return b, err
			},
			Fault: d.Set,
			Dump:  func() string { return s.dump(t) },
			Fresh: func(want proxy.Snapshot) string {
				fresh := newStage(t, s.Options)
				fresh.Apply(t, want)
				s.Restart(t)
				s.Apply(t, want)
				if n := s.Operations(t); n != 0 {
					t.Errorf("operations of a restart: got %d, want 0", n)
				}
				return fresh.dump(t)
			},
		}.Run(t, testenv.Random(t))
		if d.Met == 0 {
			t.Error("commits with a fault: got none, want some")
		}
	})
}
