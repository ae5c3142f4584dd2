package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// reach knows whether the API server can be reached. All feeds of a Run share it.
type reach struct {
	log   logr.Logger
	mu    sync.Mutex
	since time.Time // of the first failure; zero while the API server can be reached
}

// answered takes the result of a request, and reports whether its error is news.
func (r *reach) answered(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case isUnreachable(err):
		isFirst := r.since.IsZero()
		if isFirst {
			r.since = time.Now()
		}
		return isFirst
	case !r.since.IsZero():
		r.log.Info("API server answers again", "after", time.Since(r.since).Round(time.Millisecond))
		r.since = time.Time{}
	}
	return err != nil
}

// isUnreachable reports whether an error comes from the way to the API server, or from a load balancer on it.
func isUnreachable(err error) bool {
	var answer apierrors.APIStatus
	return err != nil && (!errors.As(err, &answer) || apierrors.IsServiceUnavailable(err)) && !errors.Is(err, errNoList)
}

// withoutQuery shortens the text of an error: the query of a list or watch takes hundreds of characters,
// and helps nobody.
func withoutQuery(err error) error {
	failed, ok := errors.AsType[*url.Error](err)
	if !ok {
		return err
	}
	at, parseErr := url.Parse(failed.URL)
	if parseErr != nil {
		return err
	}
	return fmt.Errorf("%s://%s%s: %w", at.Scheme, at.Host, at.Path, failed.Err)
}

// untilReached tries until the API server can be reached and is not too busy, or ctx ends. A reflector does so, too, but
// in the end it pauses for half a minute to a minute, and it ignores the end of ctx before it streams a list. After
// an outage, a node must not serve old endpoints for so long. A busy API server gets the pauses of a reflector.
func untilReached[R any](ctx context.Context, try func() (R, error)) (R, error) {
	const first = 800 * time.Millisecond
	away := wait.Backoff{Duration: first, Factor: 2, Jitter: 1, Steps: 10, Cap: 2 * time.Second}
	busy := wait.Backoff{Duration: first, Factor: 2, Jitter: 1, Steps: 10, Cap: 30 * time.Second}
	for {
		r, err := try()
		pause := &away
		switch {
		case apierrors.IsTooManyRequests(err):
			pause = &busy
		case !isUnreachable(err):
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(pause.Step()):
		}
	}
}
