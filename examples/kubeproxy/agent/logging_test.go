package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestLog checks that verbosities are shown as such, in both forms of the log.
func TestLog(t *testing.T) {
	t.Parallel()
	for format, want := range map[string][]string{
		textFormat: {`level=INFO msg=a`, `level=INFO v=2 msg=b level=x`, `level=ERROR msg=c err=EOF`},
		jsonFormat: {`"level":"INFO","msg":"a"`, `"level":"INFO","v":2,"msg":"b","level":"x"`, `"level":"ERROR","msg":"c","err":"EOF"`},
	} {
		var out strings.Builder
		c := newConfig("linux")
		c.Logging.Format, c.Logging.Verbosity = format, 2
		log := logr.FromSlogHandler(c.logHandler(&out, c.logLevel()))
		log.Info("a")
		log.V(2).Info("b", "level", "x")
		log.V(3).Info("not logged")
		log.Error(errors.New("EOF"), "c")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%s: got %q, want %d lines", format, lines, len(want))
		}
		for i, line := range lines {
			if !strings.Contains(line, want[i]) || format == jsonFormat && !json.Valid([]byte(line)) {
				t.Errorf("%s: got line %s, want %s", format, line, want[i])
			}
		}
	}
}

// TestWarnings checks that warnings are logged as such, and notes as information.
func TestWarnings(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := &config{warnings: []string{"w"}, notes: []string{"n"}}
	c.report(slog.New(c.logHandler(&out, slog.LevelInfo)))
	for _, want := range []string{"level=WARN msg=configuration warning=w", "level=INFO msg=configuration note=n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got log\n%s\nwant %s", &out, want)
		}
	}
}

// TestRefusals checks that refused credentials are logged at once and then each minute, in one line for
// all kinds of objects, and other errors always.
func TestRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
		var r refusals
		expect := func(want ...string) {
			t.Helper()
			if len(lines) != len(want) {
				t.Fatalf("got lines %q, want %d", lines, len(want))
			}
			for i := range want {
				if !strings.Contains(lines[i], want[i]) {
					t.Errorf("got line %s, want %s", lines[i], want[i])
				}
			}
			lines = nil
		}
		unauthorized := apierrors.NewUnauthorized("Unauthorized")
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))
		for range 10 {
			r.report(log, fmt.Errorf("list: %w", unauthorized))
			r.report(log, forbidden)
		}
		expect(`"requests"=1`, "services is forbidden")
		time.Sleep(refusalPause)
		for range 10 {
			r.report(log, fmt.Errorf("list: %w", unauthorized))
		}
		expect(`"requests"=10`)
		// All kinds of objects share the credentials, so one line is enough for all.
		time.Sleep(refusalPause)
		for _, request := range []string{"list services", "watch services", "list nodes", "watch endpointslices"} {
			r.report(log, fmt.Errorf("%s: %w", request, unauthorized))
		}
		expect("Unauthorized")
		r.report(log, errors.New("other"))
		r.report(log, errors.New("other"))
		expect("other", "other")
		for i := range 3 * maxRefusals {
			r.report(log, apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprint(i)}, "", errors.New("no")))
		}
		if len(r.entries) > maxRefusals {
			t.Errorf("entries: got %d, want at most %d", len(r.entries), maxRefusals)
		}
	})
}
