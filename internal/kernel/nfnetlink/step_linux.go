package nfnetlink

import (
	"iter"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Step is one expression of a rule, with attributes that have the kernel's numbers
// (NFTA_PAYLOAD_BASE and so on). It must not be used after Each of the [Visitor] that got
// the rule has returned.
type Step struct {
	// Name is the kernel's name of the kind of expression, such as "payload".
	Name []byte
	data attrs
}

// Bytes returns the value of an attribute, nil if there is none.
func (s *Step) Bytes(attr uint16) []byte { return s.data.Find(attr) }

// Number returns the value of a 32-bit attribute, 0 if there is none.
func (s *Step) Number(attr uint16) uint32 { return s.data.Uint32(attr) }

// Verdict returns the verdict of an "immediate", and the chain of a jump or goto. ok is
// false if the expression loads a value.
func (s *Step) Verdict() (v Verdict, chain []byte, ok bool) {
	verdict := attrs(attrs(s.data.Find(unix.NFTA_IMMEDIATE_DATA)).Find(unix.NFTA_DATA_VERDICT))
	code := verdict.Find(unix.NFTA_VERDICT_CODE)
	return Verdict(rawnetlink.Uint32Of(code)), rawnetlink.TextOf(verdict.Find(unix.NFTA_VERDICT_CHAIN)), code != nil
}

// Steps returns the expressions of a rule in their order. It must not be called after Each
// of the [Visitor] that got the rule has returned.
func (i *RuleInfo) Steps() iter.Seq[Step] {
	return func(yield func(Step) bool) {
		for rest := i.steps; ; {
			_, v, ok := rest.Next()
			elem := attrs(v)
			if !ok || !yield(Step{Name: rawnetlink.TextOf(elem.Find(unix.NFTA_EXPR_NAME)), data: elem.Find(unix.NFTA_EXPR_DATA)}) {
				return
			}
		}
	}
}

// DataValue returns the value within an attribute with data, nil if it has another kind of data.
func DataValue(attribute []byte) []byte { return attrs(attribute).Find(unix.NFTA_DATA_VALUE) }
