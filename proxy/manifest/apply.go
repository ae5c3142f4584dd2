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

// handOver passes the differences between the files and f.held to the handler. It
// observes them if they have changed.
func (f *follower) handOver(ctx context.Context, changed bool) error {
	wanted := f.merge()
	f.warnings, f.unassigned = crossCheck(wanted), nil
	gone := maps.Clone(f.held)
	for _, o := range wanted {
		delete(gone, o.key)
		if err := ctx.Err(); err != nil {
			return err
		}
		f.pass(ctx, o)
	}
	for _, k := range slices.SortedFunc(maps.Keys(gone), key.compare) {
		f.remove(k)
	}
	if !f.synced {
		f.synced = true
		f.Handler.Synced()
	}
	if f.Observe != nil && changed {
		f.Observe(f.summary(wanted))
	}
	return nil
}

// pass passes an object to the handler unless that has it already. A Service whose ClusterIP
// cannot be assigned is passed when that succeeds.
func (f *follower) pass(ctx context.Context, o object) {
	held, value := f.held[o.key], o.value
	service, ok := value.(*v1.Service)
	ok = ok && needsClusterIP(service)
	if ok && f.Assign == nil && service.Spec.ClusterIP == "" {
		f.warnings = append(f.warnings, o.problem(errNoClusterIP))
	}
	if held == value || equality.Semantic.DeepEqual(held, value) {
		f.held[o.key] = value
		return
	}
	if ok && f.Assign != nil {
		service = service.DeepCopy()
		if err := f.Assign(ctx, service); err != nil {
			f.unassigned = append(f.unassigned, o.problem(err))
			return
		}
		value = service
	}
	f.update(value)
	f.held[o.key] = o.value
}

// problem returns an error of the object as a DocumentError.
func (o object) problem(err error) *DocumentError {
	return &DocumentError{File: o.file, Line: o.line, Item: o.item, Err: fmt.Errorf("%v: %w", o.key, err)}
}

// merge returns the objects of all files, in the order of handing over (of two Services
// that claim one address, the first gets it). An object of the same name in another file
// replaces one that is kept only because its file has an error. merge records duplicates.
func (f *follower) merge() (wanted []object) {
	n := 0
	for _, file := range f.files {
		n += len(file.objects)
	}
	wanted = make([]object, 0, n)
	owner := make(map[key]int, n) // index in wanted
	f.duplicates = nil
	for _, kept := range []bool{false, true} {
		for _, path := range f.paths() {
			for _, o := range f.files[path].objects {
				at, taken := owner[o.key]
				switch {
				case o.kept != kept:
				case !taken:
					owner[o.key] = len(wanted)
					wanted = append(wanted, o)
				case !kept:
					first := wanted[at]
					err := fmt.Errorf("duplicate %v ignored: it is already in %s:%d", o.key, first.file, first.line)
					f.duplicates = append(f.duplicates, &DocumentError{File: path, Line: o.line, Item: o.item, Err: err})
				}
			}
		}
	}
	slices.SortStableFunc(wanted, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(f.assigned(a), f.assigned(b)), cmp.Compare(a.changed, b.changed))
	})
	return wanted
}

// assigned returns 1 for a Service whose ClusterIP f.Assign chooses, after all those that
// files name, and otherwise 0.
func (f *follower) assigned(o object) int {
	if s, ok := o.value.(*v1.Service); ok && f.Assign != nil && s.Spec.ClusterIP == "" {
		return 1
	}
	return 0
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
	all := slices.Concat(f.duplicates, f.unassigned)
	for _, file := range f.files {
		all = append(all, file.errs...)
	}
	errs := inOrder(all)
	if f.pathErr != nil {
		errs = slices.Insert(errs, 0, fmt.Errorf("manifest: %w", f.pathErr))
	}
	return errors.Join(errs...)
}

// allWarnings joins all warnings, in the order of files and lines.
func (f *follower) allWarnings() error {
	all := slices.Clone(f.warnings)
	for _, file := range f.files {
		all = append(all, file.warnings...)
	}
	return errors.Join(inOrder(all)...)
}

// inOrder sorts errors by files and lines.
func inOrder(all []*DocumentError) []error {
	slices.SortStableFunc(all, func(a, b *DocumentError) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Item, b.Item))
	})
	errs := make([]error, 0, len(all)+1)
	for _, e := range all {
		errs = append(errs, e)
	}
	return errs
}

// report reports the problems and the warnings that differ from those reported last.
func (f *follower) report() {
	passOn(&f.reported, f.problems(), f.Report)
	if f.Warn != nil {
		passOn(&f.warned, f.allWarnings(), f.Warn)
	}
}

// passOn passes an error on if its text differs from the last one.
func passOn(last *string, err error, pass func(error)) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == *last {
		return
	}
	*last = text
	if pass != nil {
		pass(err)
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
		s.Errors += len(file.errs)
		for k, n := range file.ignored {
			s.Ignored[k] += n
		}
	}
	return s
}
