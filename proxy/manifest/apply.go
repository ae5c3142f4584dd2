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
)

// handOver passes the differences between the files and f.held to the handler. It
// observes them if they have changed.
func (f *follower) handOver(ctx context.Context, changed bool) error {
	wanted := f.merge()
	f.warnings, f.unassigned = check(wanted, f.Assign != nil), nil
	gone := maps.Clone(f.held)
	for _, o := range wanted {
		delete(gone, o.key)
		if err := ctx.Err(); err != nil {
			return err
		}
		f.pass(ctx, o)
	}
	for _, k := range slices.SortedFunc(maps.Keys(gone), key.compare) {
		delete(f.held, k)
		switch k.kind { //nolint:exhaustive // deletions of Nodes are not handed over
		case serviceKind:
			f.Handler.DeleteService(k.NamespacedName)
		case sliceKind:
			f.Handler.DeleteEndpointSlice(k.NamespacedName)
		}
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
	if held == value || equality.Semantic.DeepEqual(held, value) {
		f.held[o.key] = value
		return
	}
	if service, ok := value.(*v1.Service); ok && f.Assign != nil && needsClusterIP(service) {
		service = service.DeepCopy()
		if err := f.Assign(ctx, service); err != nil {
			f.unassigned = append(f.unassigned, o.problem(err))
			return
		}
		value = service
	}
	switch value := value.(type) {
	case *v1.Node:
		f.Handler.UpdateNode(value)
	case *v1.Service:
		f.Handler.UpdateService(value)
	case *discoveryv1.EndpointSlice:
		f.Handler.UpdateEndpointSlice(value)
	}
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
	var kept []object
	for _, path := range f.paths() {
		for _, o := range f.files[path].objects {
			if o.kept {
				kept = append(kept, o)
			} else {
				wanted = append(wanted, o)
			}
		}
	}
	all := slices.Concat(wanted, kept)
	f.duplicates, wanted = nil, all[:0]
	owner := make(map[key]object, len(all))
	for _, o := range all {
		first, taken := owner[o.key]
		switch {
		case !taken:
			owner[o.key] = o
			wanted = append(wanted, o)
		case !o.kept:
			f.duplicates = append(f.duplicates, o.problem(fmt.Errorf("duplicate, ignored: it is already in %s:%d", first.file, first.line)))
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

// problems joins all errors, in the order of files and lines.
func (f *follower) problems() error { return errors.Join(f.allErrors()...) }

func (f *follower) allErrors() []error {
	errs := f.inOrder(slices.Concat(f.duplicates, f.unassigned), func(c *content) []*DocumentError { return c.errs })
	if f.pathErr != nil {
		errs = slices.Insert(errs, 0, fmt.Errorf("manifest: %w", f.pathErr))
	}
	return errs
}

// allWarnings returns all warnings, in the order of files and lines.
func (f *follower) allWarnings() []error {
	return f.inOrder(f.warnings, func(c *content) []*DocumentError { return c.warnings })
}

// inOrder returns errors about several files, and the errors of each file.
func (f *follower) inOrder(several []*DocumentError, of func(*content) []*DocumentError) (errs []error) {
	all := slices.Clone(several)
	for _, file := range f.files {
		all = append(all, of(&file.content)...)
	}
	slices.SortStableFunc(all, func(a, b *DocumentError) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Item, b.Item))
	})
	for _, e := range all {
		errs = append(errs, e)
	}
	return errs
}

// report logs the problems and the warnings that have begun or ended.
func (f *follower) report() {
	f.reported.Update(f.Logger, "manifest problem", f.allErrors(), describe)
	f.warned.Update(f.Logger, "manifest warning", f.allWarnings(), describe)
}

// describe returns the document of an error as keys and values of the log, and the reason.
func describe(err error) (place []any, reason error) {
	doc, ok := errors.AsType[*DocumentError](err)
	switch {
	case !ok:
		return nil, err
	case doc.Item == noItem:
		return []any{"file", doc.File, "line", doc.Line}, doc.Err
	}
	return []any{"file", doc.File, "line", doc.Line, "item", doc.Item}, doc.Err
}

// summary counts what is in effect.
func (f *follower) summary(wanted []object) Summary {
	s := Summary{Files: len(f.files), Warnings: len(f.allWarnings()), Ignored: make(map[string]int)}
	count := [...]*int{nodeKind: &s.Nodes, serviceKind: &s.Services, sliceKind: &s.EndpointSlices}
	for _, o := range wanted {
		*count[o.kind]++
		if o.kept {
			s.Kept++
		}
	}
	for _, file := range f.files {
		s.Errors += len(file.errs)
		for k, n := range file.ignored {
			s.Ignored[k] += n
		}
	}
	return s
}
