package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A Problem has a form in JSON, also if a backend gives it no error, and that form can be read.
func TestProblemsAreMarshalled(t *testing.T) {
	web := types.NamespacedName{Namespace: "ns", Name: "web"}
	for _, c := range []struct {
		problem    *Problem
		json, text string
	}{
		{
			&Problem{Kind: "Service", NamespacedName: web, Field: "spec", Reason: TooMany, Err: errors.New("why\nthen")},
			`{"kind":"Service","namespace":"ns","name":"web","field":"spec","reason":"TooMany","message":"why\nthen"}`, "Service ns/web: spec: why\nthen",
		},
		{
			&Problem{Kind: "Node", NamespacedName: types.NamespacedName{Name: "n"}, Field: "f", Reason: NodeSetting},
			`{"kind":"Node","name":"n","field":"f","reason":"NodeSetting","message":"no message"}`, "Node n: f: no message",
		},
	} {
		text, err := json.Marshal(c.problem)
		testenv.NoError(t, err)
		if string(text) != c.json {
			t.Errorf("got %s, want %s", text, c.json)
		}
		var read Problem
		testenv.NoError(t, json.Unmarshal(text, &read))
		if read.compare(c.problem) != 0 || read.Error() != c.text {
			t.Errorf("%s: read back %q, want %q", text, read.Error(), c.text)
		}
		if place, reason := c.problem.place(); reason == nil || place[3] != strings.TrimPrefix(c.problem.NamespacedName.String(), "/") {
			t.Errorf("%s: place in the log: got %v, %v", text, place, reason)
		}
	}
	funcr.New(func(_, args string) {
		if !strings.Contains(args, "Service x: f: no message") {
			t.Errorf("logged as a value: got %s", args)
		}
	}, funcr.Options{}).Info("", "problem", &Problem{Kind: "Service", NamespacedName: types.NamespacedName{Name: "x"}, Field: "f"})
	var p Problem
	if err := json.Unmarshal([]byte(`{"kind":1}`), &p); err == nil {
		t.Error("a number for the kind: got no error, want one")
	}
}

// The Runner logs each problem of the snapshots, and each limit of the backend, when it begins and when it ends.
func TestRunnerLogsProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: &panicking{}, Logger: funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{})}
		stop := goRun(t, r)
		const place = `"kind"="Service" "object"="default/b" "field"=`
		for _, step := range []struct {
			what, externalIP string
			want             []string
		}{
			{"a bad address", "nonsense", []string{
				`"msg"="object problem" "error"="\"nonsense\" is not an IP address" ` + place + `"spec.externalIPs[0]" "reason"="InvalidValue"`,
				`"msg"="served with limits" "error"="in part" ` + place + `"spec" "reason"=""`,
			}},
			{"a good one", "203.0.113.9", []string{
				`"level"=0 "msg"="object problem resolved" ` + place + `"spec.externalIPs[0]" "reason"="InvalidValue" "was"="\"nonsense\" is not an IP address"`,
			}},
		} {
			tr.UpdateService(objects.Service("b", "10.96.0.9", objects.Ports("80"), objects.ExternalIPs(step.externalIP)))
			sleepAndWait(time.Second)
			if diff := cmp.Diff(step.want, log); diff != "" {
				t.Errorf("%s: log (-want +got):\n%s", step.what, diff)
			}
			log = nil
		}
		stop()
	})
}

// losing is a backend with limits whose Apply may lose the dataplane.
type losing struct {
	panicking
	err atomic.Pointer[error]
}

func (b *losing) Apply(context.Context, Snapshot, Snapshot) error {
	if err := b.err.Load(); err != nil {
		return *err
	}
	return nil
}

// While it is not known what the dataplane has, the limits that were logged last stay.
func TestLimitsStayWhileTheDataplaneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		tr, b := newTestTracker(), &losing{}
		tr.Synced()
		r := &Runner{Source: tr, Backend: b, Logger: funcr.New(func(_, args string) {
			if strings.Contains(args, "served with limits") {
				log = append(log, args)
			}
		}, funcr.Options{})}
		stop := goRun(t, r)
		for i, step := range []struct {
			err   error
			ip    string
			lines int
		}{{nil, "10.96.0.1", 1}, {ErrDataplaneLost, "10.96.0.2", 0}, {nil, "10.96.0.3", 0}} {
			b.err.Store(nil)
			if step.err != nil {
				b.err.Store(&step.err)
			}
			tr.UpdateService(objects.Service("b", step.ip, objects.Ports("80")))
			sleepAndWait(time.Second)
			if len(log) != step.lines {
				t.Errorf("step %d: got lines %q, want %d", i, log, step.lines)
			}
			log = nil
		}
		stop()
	})
}

// The log counts the service ports that are not programmed.
func TestUnprogrammedPortsAreCounted(t *testing.T) {
	held := NewSnapshot(&Node{}, &ServicePort{Name: portName("a")}, &ServicePort{Name: portName("b")}, &ServicePort{Name: portName("c")})
	one := NewSnapshot(&Node{}, &ServicePort{Name: portName("a")})
	failed := func(names ...string) PortErrors {
		e := PortErrors{}
		for _, name := range names {
			e[portName(name)] = ErrUnsupported
		}
		return e
	}
	for _, c := range []struct {
		sync Sync
		want string
	}{
		{Sync{Snapshot: held}, "it is not known which of 3 service ports are programmed"},
		{Sync{Snapshot: held, Applied: held}, "no change of 3 service ports is programmed"},
		{Sync{Snapshot: one, Applied: one}, "no change of 1 service port is programmed"},
		{Sync{Snapshot: held, Applied: held, Refused: failed("a")}, "1 service port of 3 is not programmed"},
		{Sync{Snapshot: held, Applied: held, Refused: failed("a", "gone")}, "2 service ports of 4 are not programmed"},
	} {
		if got := unprogrammed(&c.sync); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// The tracker gives each problem its reason.
func TestReasonsOfTheTracker(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "n", Annotations: []string{"a"}})
	tr.Synced()
	for _, s := range []string{"a", "b"} {
		service := objects.Service(s, "10.96.0.9", objects.Ports("80"), objects.NodePort(30080), objects.ExternalIPs("nonsense"))
		service.Annotations = map[string]string{"a": strings.Repeat("x", maxAnnotation+1)}
		tr.UpdateService(service)
	}
	s, err := tr.Next(t.Context(), Snapshot{})
	testenv.NoError(t, err)
	var got []Reason
	for p := range s.Problems() {
		got = append(got, p.Reason)
	}
	slices.Sort(got)
	if want := []Reason{AddressConflict, InvalidValue, NodeIncomplete, TooMany}; !slices.Equal(slices.Compact(got), want) {
		t.Errorf("got reasons %v, want %v", got, want)
	}
}
