package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// handOver tells the handler what differs from what it has.
func (f *follower) handOver(ctx context.Context) error {
	wanted, kept := f.merge()
	gone := maps.Clone(f.told)
	for _, o := range wanted {
		delete(gone, o.key)
		if f.told[o.key] == o.digest {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		f.update(o.value)
		f.told[o.key] = o.digest
	}
	for _, k := range slices.SortedFunc(maps.Keys(gone), key.compare) {
		f.remove(k)
	}
	if !f.synced {
		f.synced = true
		f.Handler.Synced()
	}
	if f.Observe != nil {
		f.Observe(f.summary(wanted, kept))
	}
	return nil
}

// merge gives what all files want together, in the order of handing over (of two
// Services that want one address, the tracker takes the first), and how many of these objects are kept only for an error in their file; those
// yield to others. It notes what stands twice.
func (f *follower) merge() (wanted []object, kept int) {
	owner := make(map[key]*DocumentError)
	f.twice = nil
	for _, path := range f.paths() {
		for _, o := range f.files[path].objects {
			place := &DocumentError{File: path, Line: o.line, Item: o.item}
			if first := owner[o.key]; first != nil {
				place.Err = fmt.Errorf("%v stands already in %s:%d", o.key, first.File, first.Line)
				f.twice = append(f.twice, place)
				continue
			}
			owner[o.key] = place
			wanted = append(wanted, o)
		}
	}
	for _, path := range f.paths() {
		for _, o := range f.files[path].kept {
			if owner[o.key] == nil {
				owner[o.key] = &DocumentError{File: path}
				wanted = append(wanted, o)
				kept++
			}
		}
	}
	slices.SortStableFunc(wanted, func(a, b object) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.changed, b.changed)) })
	return wanted, kept
}

func (f *follower) update(o apiObject) {
	switch o := o.(type) {
	case *v1.Node:
		f.Handler.UpdateNode(o)
	case *v1.Service:
		f.Handler.UpdateService(o)
	case *discoveryv1.EndpointSlice:
		f.Handler.UpdateEndpointSlice(o)
	}
}

func (f *follower) remove(k key) {
	switch k.kind {
	case serviceKind:
		f.Handler.DeleteService(k.NamespacedName)
	case sliceKind:
		f.Handler.DeleteEndpointSlice(k.NamespacedName)
	case nodeKind, otherKind, listKind:
	}
	delete(f.told, k)
}

// problems joins all that is wrong, in the order of files and lines.
func (f *follower) problems() error {
	all := slices.Clone(f.twice)
	for _, file := range f.files {
		all = append(all, file.errs...)
	}
	slices.SortStableFunc(all, func(a, b *DocumentError) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Item, b.Item))
	})
	errs := make([]error, 0, len(all)+1)
	if f.pathErr != nil {
		errs = append(errs, fmt.Errorf("manifest: %w", f.pathErr))
	}
	for _, e := range all {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// report tells a state of the problems that differs from the one told before.
func (f *follower) report() {
	err, text := f.problems(), ""
	if err != nil {
		text = err.Error()
	}
	if text == f.reported {
		return
	}
	f.reported = text
	if f.Report != nil {
		f.Report(err)
	}
}

func (f *follower) summary(wanted []object, kept int) Summary {
	s := Summary{Files: len(f.files), Kept: kept, Ignored: make(map[string]int)}
	for _, o := range wanted {
		switch o.kind {
		case nodeKind:
			s.Nodes++
		case serviceKind:
			s.Services++
		case sliceKind:
			s.EndpointSlices++
		case otherKind, listKind:
		}
	}
	for _, file := range f.files {
		for k, n := range file.ignored {
			s.Ignored[k] += n
		}
	}
	return s
}
