package stagetest

import "math/rand/v2"

// Disturbance makes one of the next commits of a backend fail, or disturbs it.
type Disturbance struct {
	// Refusals are errors of commits that did nothing, Unknown the error of one
	// that may have done everything.
	Refusals []error
	Unknown  error
	// Flush is what another program does before or after a commit.
	Flush func()
	// Always, unless it is nil, is the error of all commits, which do nothing.
	Always error
	// Met counts the commits with a fault.
	Met int

	after int // how many commits have no fault before
	meet  func(commit func() error) error
}

// Set chooses a fault at random, or removes it.
func (d *Disturbance) Set(r *rand.Rand, on bool) {
	d.meet = nil
	if !on {
		return
	}
	d.after = r.IntN(4)
	faults := []func(commit func() error) error{
		func(commit func() error) error {
			if err := commit(); err != nil {
				return err
			}
			return d.Unknown
		},
		func(commit func() error) error {
			d.Flush()
			return commit()
		},
		func(commit func() error) error {
			err := commit()
			d.Flush()
			return err
		},
	}
	for _, err := range d.Refusals {
		faults = append(faults, func(func() error) error { return err })
	}
	d.meet = faults[r.IntN(len(faults))]
}

// Around runs a commit, with the fault if it is due.
func (d *Disturbance) Around(commit func() error) error {
	if d.Always != nil {
		d.Met++
		return d.Always
	}
	if d.meet == nil {
		return commit()
	}
	if d.after--; d.after >= 0 {
		return commit()
	}
	meet := d.meet
	d.meet = nil
	d.Met++
	return meet(commit)
}
