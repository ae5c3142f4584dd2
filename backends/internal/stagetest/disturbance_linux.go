package stagetest

import "math/rand/v2"

// Disturbance lets one of the next commits of a backend meet with a fault.
type Disturbance struct {
	// Refusals are errors of commits that did nothing, Unknown the error of one
	// that may have done everything.
	Refusals []error
	Unknown  error
	// Flush is what somebody else does before or after a commit.
	Flush func()
	// Met counts the commits that met with a fault.
	Met int

	after int // how many commits go before
	meet  func(commit func() error) error
}

// Set chooses a fault, or takes it back.
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

// Around carries a commit out, or lets it meet with the fault.
func (d *Disturbance) Around(commit func() error) error {
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
