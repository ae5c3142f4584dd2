package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// story is what is shown, and all that plays in it.
type story struct {
	*screen
	*manifest
	network *network
	proxy   *serviceProxy
	client  caller
}

// tell goes through the steps until one of them does not come out right.
func (s *story) tell(ctx context.Context) error {
	s.print("A small cluster, made of network namespaces:\n\n")
	s.say("client %s ─── %s node %s ─── %s", clientAddr, nodeForClient, nodeForPods, names(s.pods))
	steps := []struct {
		title string
		run   func(context.Context) error
	}{
		{"A Service appears", s.appear},
		{"A client uses it", s.use},
		{"Whom do the pods see?", s.sources},
		{s.last().name + " is deleted", s.scaleDown},
		{s.last().name + " comes back", s.scaleUp},
		{s.last().name + " is about to terminate", s.terminate},
		{"A client sticks to its pod", s.stick},
		{"Why does a packet go where it goes?", s.why},
		{"A port that the Service does not have", s.wrongPort},
	}
	for i, step := range steps {
		s.step(step.title)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// settle waits until the kernel does what the proxy has been told, and says what
// it took.
func (s *story) settle(ctx context.Context) error {
	sync, err := s.proxy.settle(ctx)
	if err != nil {
		return err
	}
	s.say("Done: %d kernel operations in %v.", sync.Operations, sync.Duration.Round(10*time.Microsecond))
	return nil
}

// spread sends requests and checks that just the wanted pods answer.
func (s *story) spread(ctx context.Context, want []pod) error {
	counts, err := s.count(ctx)
	if err != nil {
		return err
	}
	for _, p := range s.pods {
		n, wanted := counts[p.name], slices.Contains(want, p)
		if wanted && n == 0 {
			return fmt.Errorf("%s should answer, but got none of %d requests", p.name, s.requests())
		}
		if !wanted && n > 0 {
			return fmt.Errorf("%s still answers: it got %d of %d requests, but should get none", p.name, n, s.requests())
		}
	}
	return nil
}

// requests is how many requests show how the load spreads: so many that a pod
// gets none by chance less than once in a hundred million runs.
func (s *story) requests() int { return 20 * len(s.pods) }

// count sends requests and counts who answers.
func (s *story) count(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	for range s.requests() {
		a, err := s.client.ask(ctx, s.vip)
		if err != nil {
			return nil, err
		}
		counts[a.pod]++
	}
	s.bars(s.pods, counts)
	return counts, nil
}

func names(pods []pod) string {
	var all []string
	for _, p := range pods {
		all = append(all, "["+p.name+"]")
	}
	return strings.Join(all, " ")
}

// end checks that nothing answers any more once the proxy has cleaned up.
func (s *story) end(ctx context.Context) error {
	s.step("Everything is taken away")
	a, err := s.client.ask(ctx, s.vip)
	if err == nil {
		return fmt.Errorf("%s still answers at %s, although the proxy has cleaned up", a.pod, s.vip)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.say("The proxy has removed what it put into the kernel: %s is unreachable (%v).", s.vip, reason(err))
	s.say("The network was made of namespaces that end with this program. All is well.")
	return nil
}

// reason gives the heart of a network error.
func reason(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
