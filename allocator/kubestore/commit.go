package kubestore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/allocator"
)

// undoTime bounds undoing changes after one of several has failed.
const undoTime = 10 * time.Second

// errForeign says that another program manages an object.
var errForeign = errors.New("managed by another program")

// change is an object before and after; nil for none. The zero change was not made.
type change struct {
	before, after *networkingv1.IPAddress
	version       allocator.Version
}

// Commit implements [allocator.Store]. It writes several objects at the same time. An
// object that another program manages is a conflict, whatever its version. The version
// of a deletion is that of the deleted object: the API server does not return another.
func (s *Store) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	objects, err := s.objects(ops)
	if err != nil {
		return nil, err
	}
	changes, errs := make([]change, len(ops)), make([]error, len(ops))
	var hasFailed atomic.Bool
	each(len(ops), func(i int) {
		if hasFailed.Load() {
			return
		}
		changes[i], errs[i] = s.write(ctx, ops[i], objects[i])
		s.recent.put(ops[i].Claim.Key, changes[i].after)
		if errs[i] != nil {
			hasFailed.Store(true)
		}
	})
	if err := worst(errs); err != nil {
		return nil, s.undo(ctx, changes, err)
	}
	versions := make([]allocator.Version, len(ops))
	for i, c := range changes {
		versions[i] = c.version
	}
	return versions, nil
}

// worst returns the first error that is no conflict: after it the outcome is unknown. If
// there is none it gives the first conflict.
func worst(errs []error) (conflict error) {
	for _, err := range errs {
		switch {
		case err != nil && !errors.Is(err, allocator.ErrConflict):
			return err
		case conflict == nil:
			conflict = err
		}
	}
	return conflict
}

// objects returns the object to write for each operation, nil for deletions.
func (s *Store) objects(ops []allocator.Op) ([]*networkingv1.IPAddress, error) {
	if err := allocator.CheckOps(ops); err != nil {
		return nil, err
	}
	objects := make([]*networkingv1.IPAddress, len(ops))
	for i, op := range ops {
		if op.Delete {
			continue
		}
		var err error
		if objects[i], err = s.newObject(op.Claim); err != nil {
			return nil, fmt.Errorf("change %d: %w", i, err)
		}
	}
	return objects, nil
}

// write makes one change.
func (s *Store) write(ctx context.Context, op allocator.Op, object *networkingv1.IPAddress) (change, error) {
	if op.Claim.Version == 0 {
		return s.create(ctx, op.Claim, object)
	}
	before, err := s.expect(ctx, op.Claim)
	switch {
	case err != nil:
		return change{}, err
	case op.Delete:
		return s.remove(ctx, before)
	case ownerOf(before.Spec.ParentRef) == op.Claim.Owner:
		return s.update(ctx, op.Claim, before)
	}
	if _, err := s.remove(ctx, before); err != nil {
		return change{}, err
	}
	c, err := s.create(ctx, op.Claim, object)
	switch {
	case errors.Is(err, allocator.ErrConflict):
		return change{}, err
	case err != nil:
		return change{}, s.undo(ctx, []change{{before: before}}, err)
	}
	c.before = before
	return c, nil
}

// expect returns the object of a claim, if it has the claim's version and this store
// manages it.
func (s *Store) expect(ctx context.Context, c allocator.Claim) (*networkingv1.IPAddress, error) {
	if o := s.recent.get(c); o != nil && o.Labels[networkingv1.LabelManagedBy] == s.managedBy {
		return o, nil
	}
	o, current, err := s.get(ctx, c.Key)
	switch {
	case err != nil:
		return nil, err
	case current.Version != c.Version:
		return nil, &allocator.ConflictError{Key: c.Key, Current: current}
	case o.Labels[networkingv1.LabelManagedBy] != s.managedBy:
		conflict := &allocator.ConflictError{Key: c.Key, Current: current}
		return nil, fmt.Errorf("%w: %q: %w", errForeign, o.Labels[networkingv1.LabelManagedBy], conflict)
	}
	return o, nil
}

func (s *Store) create(ctx context.Context, claim allocator.Claim, object *networkingv1.IPAddress) (change, error) {
	made, err := s.client.IPAddresses().Create(ctx, object, metav1.CreateOptions{})
	return s.confirm(ctx, claim, change{after: made}, err)
}

func (s *Store) update(ctx context.Context, claim allocator.Claim, before *networkingv1.IPAddress) (change, error) {
	after := before.DeepCopy()
	annotate(after, claim)
	made, err := s.client.IPAddresses().Update(ctx, after, metav1.UpdateOptions{})
	return s.confirm(ctx, claim, change{before: before, after: made}, err)
}

// confirm returns the outcome of a write. After an error it reads the object: the response
// may have been lost, or the API server may have got the request twice.
func (s *Store) confirm(ctx context.Context, claim allocator.Claim, c change, cause error) (change, error) {
	if cause == nil {
		var err error
		c.version, err = versionOf(c.after.ResourceVersion)
		return c, err
	}
	cause = fmt.Errorf("writing IPAddress %v: %w", claim.Key, cause)
	object, current, err := s.get(ctx, claim.Key)
	switch {
	case err != nil:
		return change{}, errors.Join(cause, err)
	case isSame(current, claim):
		return change{before: c.before, after: object, version: current.Version}, nil
	case apierrors.IsAlreadyExists(cause), apierrors.IsConflict(cause), apierrors.IsNotFound(cause):
		return change{}, &allocator.ConflictError{Key: claim.Key, Current: current}
	}
	return change{}, cause
}

// isSame reports whether the stored claim is the one that was written, apart from its
// version.
func isSame(stored, wanted allocator.Claim) bool {
	wanted.Version = stored.Version
	return stored == wanted
}

// remove deletes an object if it is unchanged since it was read.
func (s *Store) remove(ctx context.Context, before *networkingv1.IPAddress) (change, error) {
	read, err := claimOf(before)
	if err != nil {
		return change{}, err
	}
	cause := s.client.IPAddresses().Delete(ctx, before.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &before.UID, ResourceVersion: &before.ResourceVersion},
	})
	done := change{before: before, version: read.Version}
	if cause == nil {
		return done, nil
	}
	cause = fmt.Errorf("deleting IPAddress %v: %w", read.Key, cause)
	_, current, err := s.get(ctx, read.Key)
	switch {
	case err != nil:
		return change{}, errors.Join(cause, err)
	case current.Version == 0 && !apierrors.IsNotFound(cause):
		return done, nil
	case current.Version != read.Version:
		return change{}, &allocator.ConflictError{Key: read.Key, Current: current}
	}
	return change{}, cause
}

// undo undoes the changes that were made, because another one failed. If that fails, the
// outcome is unknown, and the error is no conflict any more.
func (s *Store) undo(ctx context.Context, changes []change, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	errs := make([]error, len(changes))
	each(len(changes), func(i int) { errs[i] = s.undoOne(ctx, changes[i]) })
	if failed := errors.Join(errs...); failed != nil {
		return fmt.Errorf("%w: %s, and undoing the other changes failed: %w", allocator.ErrUnknown, cause.Error(), failed)
	}
	return cause
}

func (s *Store) undoOne(ctx context.Context, c change) error {
	if c.before != nil && c.after != nil && c.before.UID == c.after.UID {
		old := c.before.DeepCopy()
		old.ResourceVersion = c.after.ResourceVersion
		_, err := s.client.IPAddresses().Update(ctx, old, metav1.UpdateOptions{})
		return err
	}
	if c.after != nil {
		if _, err := s.remove(ctx, c.after); err != nil {
			return err
		}
	}
	if c.before == nil {
		return nil
	}
	old := c.before.DeepCopy()
	old.UID, old.ResourceVersion = "", ""
	_, err := s.client.IPAddresses().Create(ctx, old, metav1.CreateOptions{})
	return err
}
