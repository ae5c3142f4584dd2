package proxy

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
)

// problemBook keeps what is wrong with objects, by object.
type problemBook struct {
	byObject map[problemKey][]*Problem
	// stale says that the list must be made anew.
	stale bool
}

// problemKey names an object, or one port of a Service for what concerns its
// conflicts with others.
type problemKey struct {
	kind string
	types.NamespacedName
	port ServicePortName
}

func objectKey(kind string, name types.NamespacedName) problemKey {
	return problemKey{kind: kind, NamespacedName: name}
}

func conflictKey(name ServicePortName) problemKey {
	return problemKey{kind: "Service", NamespacedName: name.NamespacedName, port: name}
}

func (b *problemBook) any() bool { return len(b.byObject) > 0 }

func (b *problemBook) set(key problemKey, problems []*Problem) {
	_, had := b.byObject[key]
	if len(problems) == 0 {
		if had {
			delete(b.byObject, key)
			b.stale = true
		}
		return
	}
	if b.byObject == nil {
		b.byObject = map[problemKey][]*Problem{}
	}
	same := slices.EqualFunc(b.byObject[key], problems, func(x, y *Problem) bool { return x.compare(y) == 0 })
	b.byObject[key] = problems
	b.stale = b.stale || !same
}

// list gives all problems in order.
func (b *problemBook) list() []*Problem {
	b.stale = false
	var out []*Problem
	for _, problems := range b.byObject {
		out = append(out, problems...)
	}
	slices.SortFunc(out, (*Problem).compare)
	return out
}

// sliceProblems turns the error of an EndpointSlice into problems.
func sliceProblems(key problemKey, err error) []*Problem {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // the parts of this very error
		errs = joined.Unwrap()
	}
	var out []*Problem
	for _, e := range errs {
		p := &Problem{Kind: key.kind, NamespacedName: key.NamespacedName, Err: e}
		if field, ok := errors.AsType[*endpoints.FieldError](e); ok {
			p.Field, p.Err = field.Field, field.Err
		}
		out = append(out, p)
	}
	return out
}
