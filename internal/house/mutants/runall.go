package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// atOnce is how many mutants run at a time.
const atOnce = 2

// runner runs mutants.
type runner struct {
	folder string // for changed files
	log    *log.Logger
}

func runAll(ctx context.Context, log *log.Logger, all []*mutant) (err error) {
	temporary, err := os.MkdirTemp("", "vipkit-mutants")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	r := &runner{temporary, log}
	if err := r.unchanged(ctx, all); err != nil {
		return err
	}
	var caught atomic.Int64
	err = testenv.Each(len(all), atOnce, func(i int) error {
		ok, err := r.mutant(ctx, all[i])
		if ok {
			caught.Add(1)
		}
		return err
	})
	log.Printf("%d mutants, %d caught", len(all), caught.Load())
	if err == nil && int(caught.Load()) < len(all) {
		err = errors.New("a mutant that survives shows that a test is missing")
	}
	return err
}

// unchanged runs the tests without mutants, all of a package at once. Without that, a test that
// fails for a reason of its own would count as one that catches.
func (r *runner) unchanged(ctx context.Context, all []*mutant) error {
	patterns := map[suite][]string{}
	var suites []suite
	for _, m := range all {
		if patterns[m.suite] == nil {
			suites = append(suites, m.suite)
		}
		if !slices.Contains(patterns[m.suite], m.pattern) {
			patterns[m.suite] = append(patterns[m.suite], m.pattern)
		}
	}
	return testenv.Each(len(suites), atOnce, func(i int) error {
		s, begin := suites[i], time.Now()
		limit := s.limit() * time.Duration(len(patterns[s]))
		o, err := goTest(ctx, s, strings.Join(patterns[s], "|"), "-timeout="+limit.String())
		switch {
		case err != nil:
			return fmt.Errorf("tests of %s without mutants: %w", s.folder, err)
		case !o.built || o.failed != "":
			return fmt.Errorf("tests of %s fail without mutants: %s\n%s", s.folder, o.failed, o.output)
		case o.passed == 0:
			return fmt.Errorf("tests of %s: none passes without mutants\n%s", s.folder, o.output)
		}
		r.log.Printf("passed   %5.1f s  %s without mutants: %d tests", time.Since(begin).Seconds(), s.folder, o.passed)
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
	o, err := goTest(ctx, m.suite, m.pattern, "-failfast", "-overlay="+overlay)
	took := time.Since(begin).Seconds()
	switch {
	case err != nil:
		return false, fmt.Errorf("mutant %s: %w", m.name, err)
	case !o.built:
		return false, fmt.Errorf("mutant %s does not compile:\n%s", m.name, o.output)
	case o.failed != "":
		r.log.Printf("caught   %5.1f s  %s: %s", took, m.name, o.failed)
		return true, nil
	case o.passed == 0:
		return false, fmt.Errorf("mutant %s: no test of %s matches %s", m.name, m.suite.folder, m.pattern)
	}
	r.log.Printf("SURVIVED %5.1f s  %s: %s (%s)", took, m.name, m.sentence, m.file)
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
