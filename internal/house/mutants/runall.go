package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// runner runs mutants, some at a time.
type runner struct {
	atOnce int
	folder string // for changed files

	mu  sync.Mutex
	out io.Writer
}

func runAll(ctx context.Context, out io.Writer, all []*mutant, atOnce int) (err error) {
	temporary, err := os.MkdirTemp("", "vipkit-mutants")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	if slices.ContainsFunc(all, func(m *mutant) bool { return lanes()[m.lane].vm }) {
		if err := buildVM(ctx); err != nil {
			return err
		}
	}
	r := &runner{atOnce: atOnce, folder: temporary, out: out}
	if err := r.unchanged(ctx, all); err != nil {
		return err
	}
	caught := 0
	err = each(ctx, atOnce, all, func(m *mutant) error {
		ok, err := r.mutant(ctx, m)
		r.mu.Lock()
		defer r.mu.Unlock()
		if ok {
			caught++
		}
		return err
	})
	r.print("%d mutants, %d caught", len(all), caught)
	if err == nil && caught < len(all) {
		err = errSurvived
	}
	return err
}

// unchanged runs the tests without mutants, all of a package at once. Without that, a test that
// fails for a reason of its own would count as one that catches.
func (r *runner) unchanged(ctx context.Context, all []*mutant) error {
	patterns := map[suite][]string{}
	var suites []suite
	for _, m := range all {
		s := suite{m.lane, m.test.folder}
		if patterns[s] == nil {
			suites = append(suites, s)
		}
		if !slices.Contains(patterns[s], m.test.pattern) {
			patterns[s] = append(patterns[s], m.test.pattern)
		}
	}
	return each(ctx, r.atOnce, suites, func(s suite) error {
		begin := time.Now()
		limit := lanes()[s.lane].limit * time.Duration(len(patterns[s]))
		o, err := goTest(ctx, s, strings.Join(patterns[s], "|"), "-timeout="+limit.String())
		switch {
		case err != nil:
			return fmt.Errorf("tests of %s without mutants: %w", s.folder, err)
		case !o.built || o.failed != "":
			return fmt.Errorf("tests of %s fail without mutants: %s\n%s", s.folder, o.failed, o.output)
		case o.passed == 0:
			return fmt.Errorf("tests of %s: none passes without mutants\n%s", s.folder, o.output)
		}
		r.print("passed   %5.1f s  %s without mutants: %d tests", time.Since(begin).Seconds(), s.folder, o.passed)
		return nil
	})
}

// mutant runs the test of one mutant, and reports whether it fails.
func (r *runner) mutant(ctx context.Context, m *mutant) (caught bool, err error) {
	begin := time.Now()
	overlay, err := r.overlay(m)
	if err != nil {
		return false, fmt.Errorf("mutant %s: %w", m.name, err)
	}
	o, err := goTest(ctx, suite{m.lane, m.test.folder}, m.test.pattern, "-failfast", "-overlay="+overlay)
	took := time.Since(begin).Seconds()
	switch {
	case err != nil:
		return false, fmt.Errorf("mutant %s: %w", m.name, err)
	case !o.built:
		return false, fmt.Errorf("mutant %s does not compile:\n%s", m.name, o.output)
	case o.failed != "":
		r.print("caught   %5.1f s  %s: %s", took, m.name, o.failed)
		return true, nil
	case o.passed == 0:
		return false, fmt.Errorf("mutant %s: no test of %s matches %s", m.name, m.test.folder, m.test.pattern)
	}
	r.print("SURVIVED %5.1f s  %s: %s (%s)", took, m.name, m.sentence, m.file)
	return false, nil
}

// overlay writes the changed file of a mutant, and the file that tells go where it is.
func (r *runner) overlay(m *mutant) (string, error) {
	changed, err := m.apply(os.DirFS("."))
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	folder, err := os.MkdirTemp(r.folder, "")
	if err != nil {
		return "", err
	}
	file, overlay := filepath.Join(folder, filepath.Base(m.file)), filepath.Join(folder, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{original: file}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.WriteFile(file, []byte(changed), 0o600), os.WriteFile(overlay, text, 0o600))
}

func (r *runner) print(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, format+"\n", args...) // the exit status says the same
}

// each calls do for all items, some at a time, until the context ends. It goes on after errors.
func each[T any](ctx context.Context, atOnce int, items []T, do func(T) error) error {
	work := make(chan T)
	errs := make([]error, atOnce)
	var workers sync.WaitGroup
	for i := range atOnce {
		workers.Go(func() {
			for item := range work {
				if ctx.Err() == nil {
					errs[i] = errors.Join(errs[i], do(item))
				}
			}
		})
	}
	for _, item := range items {
		work <- item
	}
	close(work)
	workers.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}
