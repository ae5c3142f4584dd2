package e2e_test

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// podPort is the port of the servers of every pod, TCP and UDP.
const podPort = 8080

// pod is a network namespace with a server.
type pod struct {
	name      string
	app       string
	node      *node
	ns        *netns.NS
	addresses pair
	server    *lab.Server
}

// startPod starts a pod and its servers, and reports it as ready: the work of the scheduler, the
// network plugin, the container runtime and the kubelet.
func (c *cluster) startPod(app string, n *node) *pod {
	c.t.Helper()
	n.pods++
	p := &pod{
		name: fmt.Sprintf("%s-%s-%d", app, n.name, n.pods), app: app, node: n,
		addresses: parsePair("10.244.%d.%d/32", "fd00:244:0:%d::%x/128", n.number(), n.pods+1),
	}
	p.ns = c.network.lab.Add(lab.Host{
		Name: p.name, Uplink: n.cable, Link: fmt.Sprintf("pod%d", n.pods), Addrs: p.addresses.String(), Gateway: "169.254.1.1/32 fe80::1/64",
	})
	p.server = c.network.lab.Serve(p.name, p.name, podPort)
	c.report(p)
	c.pods[p.name] = p
	return p
}

// report creates the Pod object with the status ready.
func (c *cluster) report(p *pod) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods("default")
	object, err := pods.Create(c.t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{"app": p.app}},
		Spec: v1.PodSpec{
			NodeName: p.node.name, Containers: []v1.Container{{Name: "server", Image: "server"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	now := metav1.Now()
	object.Status.Phase, object.Status.StartTime = v1.PodRunning, &now
	object.Status.Conditions = []v1.PodCondition{
		{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: now},
		{Type: v1.ContainersReady, Status: v1.ConditionTrue, LastTransitionTime: now},
	}
	for _, a := range p.addresses {
		object.Status.PodIPs = append(object.Status.PodIPs, v1.PodIP{IP: a.Addr().String()})
	}
	object.Status.PodIP = object.Status.PodIPs[0].IP
	if _, err := pods.UpdateStatus(c.t.Context(), object, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// stopPod terminates a pod like a kubelet. The pod serves for the time drain after the slices
// have it as terminating; then it is removed. With drain 0 it is removed at once, even if the
// slices still have it as ready.
func (c *cluster) stopPod(p *pod, drain time.Duration) {
	c.t.Helper()
	c.terminatePod(p)
	if drain > 0 {
		// The controller of slices, which is not under test, may need seconds: while its cache is
		// out of date it retries after one second, then after two.
		eventually(c.t, "the slices have "+p.name+" as terminating", func() error { return c.isUnready(p) })
	}
	select {
	case <-time.After(drain):
	case <-c.t.Context().Done():
	}
	c.removePod(p)
}

// terminatePod deletes the Pod object with a grace period, so that the pod is terminating.
func (c *cluster) terminatePod(p *pod) {
	c.t.Helper()
	grace := int64(30)
	if err := c.client.CoreV1().Pods("default").Delete(c.t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		c.t.Fatal(err)
	}
}

// removePod stops the servers of a pod, and deletes the Pod object.
func (c *cluster) removePod(p *pod) {
	c.t.Helper()
	testenv.NoError(c.t, p.server.Close())
	grace := int64(0)
	if err := c.client.CoreV1().Pods("default").Delete(c.t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		c.t.Fatal(err)
	}
	delete(c.pods, p.name)
}
