package testenv

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// recorder is a test that records how it fails or is skipped.
type recorder struct {
	testing.TB
	said []string
	ends []func()
}

// Record calls f with a test that f may fail, skip or end, to test a helper of tests. It returns what the test said,
// after its cleanups.
func Record(t testing.TB, f func(testing.TB)) (said []string) {
	r := &recorder{TB: t}
	for _, part := range []func(){func() { f(r) }, r.cleanUp} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			part()
		}()
		<-done
	}
	return r.said
}

func (r *recorder) cleanUp() {
	for _, end := range slices.Backward(r.ends) {
		end()
	}
}

func (r *recorder) end(how string) {
	r.said = append(r.said, how)
	runtime.Goexit()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.ends = append(r.ends, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatal(args ...any)                 { r.end(fmt.Sprint(args...)) }
func (r *recorder) Fatalf(format string, args ...any) { r.end(fmt.Sprintf(format, args...)) }
func (r *recorder) Skip(args ...any)                  { r.end("skipped: " + fmt.Sprint(args...)) }
