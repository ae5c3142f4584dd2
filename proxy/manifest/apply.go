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
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// handOver passes the differences between the files and f.held to the handler.
func (f *follower) handOver(ctx context.Context) error {
	wanted := f.merge()
	gone := maps.Clone(f.held)
	for _, o := range wanted {
		delete(gone, o.key)
		if err := ctx.Err(); err != nil {
			return err
		}
		if held := f.held[o.key]; held != o.value && !equality.Semantic.DeepEqual(held, o.value) {
			f.update(o.value)
		}
		f.held[o.key] = o.value
	}
	for _, k := range slices.SortedFunc(maps.Keys(gone), key.compare) {
		f.remove(k)
	}
	if !f.synced {
		f.synced = true
		f.Handler.Synced()
	}
	if f.Observe != nil {
		f.Observe(f.summary(wanted))
	}
	return nil
}

// merge returns the objects of all files, in the order of handing over (of two Services
// that claim one address, the first gets it). An object of the same name in another file
// replaces one that is kept only because its file has an error. merge records duplicates.
func (f *follower) merge() (wanted []object) {
	owner := make(map[key]object)
	f.duplicates = nil
	for _, kept := range []bool{false, true} {
		for _, path := range f.paths() {
			for _, o := range f.files[path].objects {
				first, taken := owner[o.key]
				switch {
				case o.kept != kept:
				case !taken:
					owner[o.key] = o
					wanted = append(wanted, o)
				case !kept:
					err := fmt.Errorf("duplicate %v ignored: it is already in %s:%d", o.key, first.file, first.line)
					f.duplicates = append(f.duplicates, &DocumentError{File: path, Line: o.line, Item: o.item, Err: err})
				}
			}
		}
	}
	slices.SortStableFunc(wanted, func(a, b object) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.changed, b.changed)) })
	return wanted
}

func (f *follower) update(o metav1.Object) {
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
	case nodeKind, otherKind:
	}
	delete(f.held, k)
}

// problems joins all errors, in the order of files and lines.
func (f *follower) problems() error {
	all := slices.Clone(f.duplicates)
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

// report reports the problems if they differ from those reported last.
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

func (f *follower) summary(wanted []object) Summary {
	s := Summary{Files: len(f.files), Ignored: make(map[string]int)}
	count := make(map[kind]int)
	for _, o := range wanted {
		count[o.kind]++
		if o.kept {
			s.Kept++
		}
	}
	s.Nodes, s.Services, s.EndpointSlices = count[nodeKind], count[serviceKind], count[sliceKind]
	for _, file := range f.files {
		for k, n := range file.ignored {
			s.Ignored[k] += n
		}
	}
	return s
}
