package proxy

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func annotations(all map[string]string) edit { return func(s *v1.Service) { s.Annotations = all } }

func listing(keys ...string) func(*TrackerOptions) {
	return func(o *TrackerOptions) { o.Annotations = keys }
}

func TestReadServiceAnnotations(t *testing.T) {
	web := func(all map[string]string) *v1.Service { return apiService("web", "10.96.0.1", annotations(all)) }
	long, plain := strings.Repeat("x", maxAnnotation), `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80"]`
	runReadCases(t, &TrackerOptions{Annotations: []string{"scheduler", "preserve"}}, []readCase{
		{"none", web(nil), []string{"policy:", plain}},
		{"unlisted", web(map[string]string{"scheduler2": "a"}), []string{"policy:", plain}},
		{"empty value", web(map[string]string{"preserve": ""}), []string{"policy: annotations=map[preserve:]", plain}},
		{"listed and unlisted", web(map[string]string{"scheduler": "wrr", "x": "y"}), []string{"policy: annotations=map[scheduler:wrr]", plain}},
		{"longest", web(map[string]string{"scheduler": long}), []string{"policy: annotations=map[scheduler:" + long + "]", plain}},
		{
			"too long", web(map[string]string{"scheduler": long + "x", "preserve": "1"}),
			[]string{"policy: annotations=map[preserve:1]", plain, "! metadata.annotations[scheduler]: 4097 bytes are more than 4096: the annotation is ignored"},
		},
	})
}

// TestAnnotationsReachAllPorts: all ports of a Service have its annotations, in both
// families; later changes of the API object and of the options have no effect.
func TestAnnotationsReachAllPorts(t *testing.T) {
	keys, values := []string{"scheduler"}, map[string]string{"scheduler": "wrr"}
	tr := newTestTracker(listing(keys...))
	keys[0] = "x"
	tr.UpdateService(apiService("web", "10.96.0.1", objects.ClusterIPs("10.96.0.1", "fd00::1"), annotations(values),
		objects.Ports("http 80", "dns 53/UDP")))
	tr.UpdateService(apiService("other", "10.96.0.2"))
	values["scheduler"] = "y"
	s := newest(t, tr)
	count := 0
	for p := range s.All() {
		want := map[string]string{"scheduler": "wrr"}
		if p.Name.Name == "other" {
			want = nil
		}
		if diff := cmp.Diff(want, p.Annotations); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p.Name, diff)
		}
		count++
	}
	if count != 5 {
		t.Errorf("got %d ports, want 5", count)
	}
}

// TestAnnotationsThatChange changes annotations at random. A Service changes if one of the
// annotations that the options name changes, and for no other annotation.
func TestAnnotationsThatChange(t *testing.T) {
	random := testenv.Random(t)
	tr := newTestTracker(listing("a", "b"))
	objects := map[string]map[string]string{}
	carried := map[string]string{}
	last := newest(t, tr)
	for range 3000 {
		name := fmt.Sprint("web", random.IntN(4))
		now := maps.Clone(objects[name])
		if now == nil {
			now = map[string]string{}
		}
		for range 1 + random.IntN(2) {
			key := []string{"a", "b", "c", "d"}[random.IntN(4)]
			if now[key] = []string{"", "1", "2", strings.Repeat("x", maxAnnotation+1)}[random.IntN(4)]; random.IntN(3) == 0 {
				delete(now, key)
			}
		}
		objects[name] = now
		text := ""
		for _, key := range []string{"a", "b"} {
			if value, ok := now[key]; ok && len(value) <= maxAnnotation {
				text += fmt.Sprintf("%s=%q ", key, value)
			}
		}
		tr.UpdateService(apiService(name, "10.96.0."+name[3:], annotations(now)))
		s, want := newest(t, tr), map[string]string{}
		if old, known := carried[name]; !known || old != text {
			want[name] = text
		}
		carried[name] = text
		got := map[string]string{}
		for c := range s.Changes(last) {
			for _, key := range []string{"a", "b", "c", "d"} {
				if value, ok := c.New.Annotations[key]; ok {
					got[c.New.Name.Name] += fmt.Sprintf("%s=%q ", key, value)
				}
			}
			got[c.New.Name.Name] += ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s with annotations %q: changes (-want +got):\n%s", name, now, diff)
		}
		last = s
	}
}
