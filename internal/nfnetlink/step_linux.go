package nfnetlink

import (
	"iter"

	"golang.org/x/sys/unix"
)

// Step is one expression of a rule. What it does stands in attributes, whose numbers
// are those of the kernel (NFTA_PAYLOAD_BASE and so on). It must not be used once Each
// of the [Visitor] that got the rule has returned.
type Step struct {
	// Name is what the kernel calls the kind of expression, such as "payload".
	Name []byte
	data attrs
}

// Bytes gives an attribute, nil if there is none.
func (s *Step) Bytes(attr uint16) []byte { return s.data.find(attr) }

// Number gives an attribute that is a number of 32 bits, 0 if there is none.
func (s *Step) Number(attr uint16) uint32 { return getUint32(s.data.find(attr)) }

// Verdict gives what an "immediate" decides, and the chain that it leads to. It is not
// ok where that loads a value instead.
func (s *Step) Verdict() (v Verdict, chain []byte, ok bool) {
	verdict := attrs(attrs(s.data.find(unix.NFTA_IMMEDIATE_DATA)).find(unix.NFTA_DATA_VERDICT))
	code := verdict.find(unix.NFTA_VERDICT_CODE)
	return Verdict(getUint32(code)), getText(verdict.find(unix.NFTA_VERDICT_CHAIN)), code != nil
}

// Steps gives the expressions of a rule in their order. It must not be called once Each
// of the [Visitor] that got the rule has returned.
func (i *RuleInfo) Steps() iter.Seq[Step] {
	return func(yield func(Step) bool) {
		rest := i.steps
		for {
			_, elem, ok := rest.next()
			if !ok {
				return
			}
			s := Step{Name: getText(attrs(elem).find(unix.NFTA_EXPR_NAME)), data: attrs(elem).find(unix.NFTA_EXPR_DATA)}
			if !yield(s) {
				return
			}
		}
	}
}
