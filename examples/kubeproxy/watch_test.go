package main

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// The Node goes to all who want to know, also that there is none.
func TestAudienceHearsOfTheNode(t *testing.T) {
	server := health.New(health.Options{NodeName: "node-1"})
	tracker := &nodes{ServiceChangeTracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})}
	a := audience{ServiceChangeTracker: tracker, health: server}
	a.UpdateNode(node("192.0.2.1"))
	a.UpdateNode(nil)
	if len(tracker.heard) != 2 || tracker.heard[0] == nil || tracker.heard[1] != nil {
		t.Errorf("the tracker heard of %v, wanted a Node and then none", tracker.heard)
	}
}

// nodes is a tracker that notes what it hears of the Node.
type nodes struct {
	proxy.ServiceChangeTracker
	heard []*v1.Node
}

func (n *nodes) UpdateNode(o *v1.Node) { n.heard = append(n.heard, o) }
