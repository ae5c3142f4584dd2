package kubestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/pause"
)

// quietPause is the pause before a watch that has sent no event is started again.
const quietPause = time.Second

// anyState is the resourceVersion that means any state that an API server has.
const anyState = "0"

// errStop ends a watch whose loop has ended.
var errStop = errors.New("the loop has ended")

// Watch implements [allocator.Store].
func (s *Store) Watch(ctx context.Context, after allocator.Version) iter.Seq2[allocator.Event, error] {
	return func(yield func(allocator.Event, error) bool) {
		// From version 0 on, a watch begins with all objects of some recent state.
		err := s.follow(ctx, resourceVersion(after), func(kind watch.EventType, object runtime.Object) error {
			o, isAddress := object.(*networkingv1.IPAddress)
			if !isAddress {
				return fmt.Errorf("a watch of IPAddresses sent a %T", object)
			}
			c, err := claimOf(o)
			if err != nil {
				return err
			}
			if !yield(allocator.Event{Claim: c, Deleted: kind == watch.Deleted}, nil) {
				return errStop
			}
			return nil
		})
		if !errors.Is(err, errStop) {
			yield(allocator.Event{}, err)
		}
	}
}

// follow passes on the changes after a resourceVersion, until an error. API servers end a
// watch after some minutes; follow then continues with another.
func (s *Store) follow(ctx context.Context, from string, take func(watch.EventType, runtime.Object) error) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// With bookmarks, a watch from version 0 would be a streamed list, which API
		// servers with an etcd before 3.4.31 refuse.
		w, err := s.client.IPAddresses().Watch(ctx, metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: from != anyState})
		if err != nil {
			return watchError(ctx, err)
		}
		last, err := drain(ctx, w, from, take)
		if err != nil {
			return err
		}
		if last == from {
			if err := pause.For(ctx, quietPause); err != nil {
				return err
			}
		}
		from = last
	}
}

// drain handles all events of one watch, and gives the resourceVersion of the last.
func drain(ctx context.Context, w watch.Interface, from string, take func(watch.EventType, runtime.Object) error) (string, error) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return from, context.Cause(ctx)
		case e, isOpen := <-w.ResultChan():
			if !isOpen {
				return from, nil
			}
			version, err := handle(ctx, e, take)
			if err != nil {
				return from, err
			}
			from = version
		}
	}
}

// handle passes an event on and gives its resourceVersion.
func handle(ctx context.Context, e watch.Event, take func(watch.EventType, runtime.Object) error) (string, error) {
	if e.Type == watch.Error {
		return "", watchError(ctx, apierrors.FromObject(e.Object))
	}
	about, err := meta.CommonAccessor(e.Object)
	if err != nil {
		return "", fmt.Errorf("watching: %w", err)
	}
	if e.Type == watch.Bookmark {
		return about.GetResourceVersion(), nil
	}
	return about.GetResourceVersion(), take(e.Type, e.Object)
}

func watchError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return fmt.Errorf("%w: %w", allocator.ErrCompacted, err)
	}
	return fmt.Errorf("watching: %w", err)
}
