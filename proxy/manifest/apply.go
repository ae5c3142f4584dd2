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

// handOver passes the differences between the files and f.handed to the handler.
func (f *follower) handOver(ctx context.Context) error {
	wanted := f.merge()
	f.changed, f.warnings = false, check(wanted)
	isFirst := f.handed == nil
	if isFirst {
		f.handed = make(map[key]metav1.Object)
	}
	gone := maps.Clone(f.handed)
	for _, o := range wanted {
		delete(gone, o.key)
		if err := ctx.Err(); err != nil {
			return err
		}
		f.pass(o)
	}
	for _, k := range slices.SortedFunc(maps.Keys(gone), key.compare) {
		delete(f.handed, k)
		switch k.kind { //nolint:exhaustive // deletions of Nodes are not handed over
		case serviceKind:
			f.Handler.DeleteService(k.NamespacedName)
		case sliceKind:
			f.Handler.DeleteEndpointSlice(k.NamespacedName)
		}
	}
	if isFirst {
		f.Handler.Synced()
	}
	if f.Observe != nil {
		f.Observe(f.summary(wanted))
	}
	return nil
}

// pass passes an object to the handler unless that has it already.
func (f *follower) pass(o object) {
	before := f.handed[o.key]
	f.handed[o.key] = o.value
	if before == o.value || equality.Semantic.DeepEqual(before, o.value) {
		return
	}
	switch value := o.value.(type) {
	case *v1.Node:
		f.Handler.UpdateNode(value)
	case *v1.Service:
		f.Handler.UpdateService(value)
	case *discoveryv1.EndpointSlice:
		f.Handler.UpdateEndpointSlice(value)
	}
}

// merge returns the objects of all files, in the order of handing over (of two Services
// that claim one address, the first gets it). An object of the same name in another file
// replaces one that is retained only because its file has an error. merge records duplicates.
func (f *follower) merge() (wanted []object) {
	var retained []object
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		for _, o := range f.files[path].objects {
			if o.retained {
				retained = append(retained, o)
			} else {
				wanted = append(wanted, o)
			}
		}
	}
	all := slices.Concat(wanted, retained)
	f.duplicates, wanted = nil, all[:0]
	owner := make(map[key]object, len(all))
	for _, o := range all {
		first, taken := owner[o.key]
		switch {
		case !taken:
			owner[o.key] = o
			wanted = append(wanted, o)
		case !o.retained:
			f.duplicates = append(f.duplicates, o.problem(fmt.Errorf("duplicate, ignored: it is already in %s:%d", first.file, first.line)))
		}
	}
	slices.SortStableFunc(wanted, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.changed, b.changed))
	})
	return wanted
}

// problems joins all errors, in the order of files and lines.
func (f *follower) problems() error { return errors.Join(f.errors()...) }

func (f *follower) errors() []error {
	errs := f.inOrder(f.duplicates, func(c *content) []*DocumentError { return c.errs })
	if f.pathErr != nil {
		errs = slices.Insert(errs, 0, fmt.Errorf("manifest: %w", f.pathErr))
	}
	return errs
}

// inOrder returns errors about several files, and the errors of each file, in the order of files and lines.
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
	warnings := f.inOrder(f.warnings, func(c *content) []*DocumentError { return c.warnings })
	f.reported.Update(f.Logger, "manifest problem", f.errors(), describe)
	f.warned.Update(f.Logger, "manifest warning", warnings, describe)
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
	s := Summary{Files: len(f.files), Warnings: len(f.warnings), Ignored: make(map[string]int)}
	for _, o := range wanted {
		if o.kind == serviceKind {
			s.Services++
		}
	}
	for _, file := range f.files {
		s.Errors += len(file.errs)
		s.Warnings += len(file.warnings)
		for k, n := range file.ignored {
			s.Ignored[k] += n
		}
	}
	return s
}
