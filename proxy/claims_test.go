package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// owners returns the service ports that have a frontend at each address.
func owners(s Snapshot) map[string][]string {
	out := map[string][]string{}
	for p := range s.All() {
		for _, f := range p.Frontends {
			key := fmt.Sprintf("%s/%s", f.Addr, p.Name.Protocol)
			out[key] = append(out[key], p.Name.Name+":"+p.Name.Port)
		}
	}
	return out
}

// rivalServices are Services of which each claims something that another one claims.
func rivalServices() []*v1.Service {
	return []*v1.Service{
		apiService("young", "10.96.0.1", objects.Created(9), objects.ExternalIPs("198.51.100.1")),
		apiService("old", "10.96.0.2", objects.Created(1), objects.LoadBalancer("198.51.100.1")),
		apiService("middle", "10.96.0.3", objects.Created(5), objects.ExternalIPs("198.51.100.1", "10.96.0.1"), objects.NodePort(30080)),
		apiService("aged", "10.96.0.4", objects.Created(5), objects.ExternalIPs("198.51.100.1"), objects.NodePort(30080)),
		apiService("other-port", "10.96.0.5", objects.ExternalIPs("198.51.100.1"), objects.Ports("http 81")),
		apiService("udp", "10.96.0.6", objects.Created(2), objects.ExternalIPs("198.51.100.1"), objects.Ports("http 80:30080/UDP")),
		apiService("same-ip", "10.96.0.6", objects.Created(3)),
		apiService("same-ip-younger", "10.96.0.6", objects.Created(4)),
		apiService("twice", "10.96.0.7", objects.Ports("b 80", "a 80")),
	}
}

func TestOwnersDoNotDependOnOrder(t *testing.T) {
	wantOwners := map[string][]string{
		"10.96.0.1:80/TCP":    {"young:http"}, // its own ClusterIP, although an older Service claims it as external IP
		"10.96.0.2:80/TCP":    {"old:http"},
		"10.96.0.3:80/TCP":    {"middle:http"},
		"10.96.0.4:80/TCP":    {"aged:http"},
		"10.96.0.5:81/TCP":    {"other-port:http"},
		"10.96.0.6:80/UDP":    {"udp:http"},
		"10.96.0.6:80/TCP":    {"same-ip:http"},
		"10.96.0.7:80/TCP":    {"twice:a"},
		"198.51.100.1:80/TCP": {"old:http"},
		"198.51.100.1:81/TCP": {"other-port:http"},
		"198.51.100.1:80/UDP": {"udp:http"},
		"0.0.0.0:30080/TCP":   {"aged:http"}, // as old as middle, but first by name
		"0.0.0.0:30080/UDP":   {"udp:http"},
	}
	wantProblems := []string{
		"Service ns/aged: spec.externalIPs: 198.51.100.1:80/TCP already belongs to Service ns/old",
		"Service ns/middle: spec.externalIPs: 10.96.0.1:80/TCP already belongs to Service ns/young",
		"Service ns/middle: spec.externalIPs: 198.51.100.1:80/TCP already belongs to Service ns/old",
		"Service ns/middle: spec.ports.nodePort: 0.0.0.0:30080/TCP already belongs to Service ns/aged",
		"Service ns/same-ip-younger: spec.clusterIPs: 10.96.0.6:80/TCP already belongs to Service ns/same-ip",
		"Service ns/twice: spec.clusterIPs: 10.96.0.7:80/TCP already belongs to Service ns/twice",
		"Service ns/young: spec.externalIPs: 198.51.100.1:80/TCP already belongs to Service ns/old",
	}
	const seed = 20260101
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 300 {
		tr, list := newTestTracker(), rivalServices()
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, s := range list {
			tr.UpdateService(s)
			if random.IntN(3) == 0 {
				newest(t, tr)
			}
		}
		s := newest(t, tr)
		if diff := cmp.Diff(wantOwners, owners(s)); diff != "" {
			t.Fatalf("seed %d, round %d: owners (-want +got):\n%s", seed, round, diff)
		}
		if diff := cmp.Diff(wantProblems, problemText(s)); diff != "" {
			t.Fatalf("seed %d, round %d: problems (-want +got):\n%s", seed, round, diff)
		}
	}
}

// An older Service does not get another one's load balancer address by naming it as
// external IP, which would also remove its source ranges.
func TestLoadBalancerBeatsOlderExternalIP(t *testing.T) {
	tr := newTestTracker()
	tr.UpdateService(apiService("victim", "10.96.0.1", objects.Created(9), objects.LoadBalancer("203.0.113.1"), objects.SourceRanges("198.51.100.0/24")))
	tr.UpdateService(apiService("old", "10.96.0.2", objects.Created(1), objects.ExternalIPs("203.0.113.1")))
	tr.Synced()
	if got := owners(newest(t, tr))["203.0.113.1:80/TCP"]; len(got) != 1 || got[0] != "victim:http" {
		t.Errorf("owner of the load balancer's address: got %q, want the Service that has it", got)
	}
}

// TestFirstHolderStays: among Services of which not all have a creation timestamp, a new
// one takes no address from its owner, whatever its name and kind of claim.
func TestFirstHolderStays(t *testing.T) {
	ageless := func(s *v1.Service) { s.CreationTimestamp = metav1.Time{} }
	const addr = "10.96.0.9"
	holder := apiService("m", addr, ageless)
	for _, tc := range []struct {
		name     string
		holder   *v1.Service
		newcomer *v1.Service
		owner    string
	}{
		{"first by name", holder, apiService("a", addr, ageless), "m:http"},
		{"last by name", holder, apiService("z", addr, ageless), "m:http"},
		{"with a timestamp", holder, apiService("a", addr, objects.Created(1)), "m:http"},
		{"without a timestamp, against one that has it", apiService("m", addr, objects.Created(9)), apiService("a", addr, ageless), "m:http"},
		{"older, both with timestamps", apiService("m", addr, objects.Created(9)), apiService("a", addr, objects.Created(1)), "a:http"},
		{"ClusterIP against external IP", apiService("m", "10.96.0.1", ageless, objects.ExternalIPs(addr)), apiService("a", addr, ageless), "m:http"},
		{"other port", holder, apiService("a", addr, ageless, objects.Ports("x 80")), "m:http"},
	} {
		tr := newTestTracker()
		owner := func(when, want string) {
			t.Helper()
			if got := owners(newest(t, tr))[addr+":80/TCP"]; !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s: got owners %q, want %q", tc.name, when, got, want)
			}
		}
		tr.UpdateService(tc.holder)
		owner("alone", "m:http")
		tr.UpdateService(tc.newcomer)
		owner("with a newcomer", tc.owner)
		if tc.owner != "m:http" {
			continue
		}
		if got := problemText(newest(t, tr)); len(got) != 1 || !strings.HasSuffix(got[0], "already belongs to Service ns/m") {
			t.Errorf("%s: got problems %q, want one of the newcomer", tc.name, got)
		}
		changed := tc.holder.DeepCopy()
		objects.InternalLocal(changed)
		tr.UpdateService(changed)
		owner("after a change of the holder", "m:http")
		again := tc.newcomer.DeepCopy()
		objects.InternalLocal(again)
		tr.UpdateService(again)
		owner("after a change of the newcomer", "m:http")
		renamed := changed.DeepCopy()
		renamed.Spec.Ports[0].Name = "renamed"
		tr.UpdateService(renamed)
		owner("after the port got another name", "m:renamed")
		tr.DeleteService(objectName("m"))
		next := tc.newcomer.Name + ":" + tc.newcomer.Spec.Ports[0].Name
		owner("without the holder", next)
		if back := tc.holder; back.CreationTimestamp.IsZero() || tc.newcomer.CreationTimestamp.IsZero() {
			tr.UpdateService(back)
			owner("and when it is back", next)
		}
	}
}
