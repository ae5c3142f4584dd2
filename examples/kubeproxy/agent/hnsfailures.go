package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// countedHNS counts calls about load balancers that fail, in metrics with the names and labels of
// kube-proxy's.
type countedHNS struct {
	hnsClient
	create, update, remove *prometheus.CounterVec
}

// countFailures returns a client that counts its failures, in a registry.
func countFailures(client hnsClient, registry prometheus.Registerer) (*countedHNS, error) {
	c := &countedHNS{hnsClient: client}
	for name, into := range map[string]**prometheus.CounterVec{"create": &c.create, "update": &c.update, "delete": &c.remove} {
		*into = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_winkernel_lb_" + name + "_failures_total",
			Help: "Calls of HNS to " + name + " a load balancer that failed.",
		}, []string{"ip_family", "lb_type", "error"})
		if err := registry.Register(*into); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// describe returns the family and the type of a load balancer. HNS does not tell addresses of load
// balancers from external IPs.
func describe(b *hcn.LoadBalancer) [2]string {
	family, kind := v1.IPv4Protocol, "ClusterIP"
	if b.Flags&hcn.IPv6 != 0 {
		family = v1.IPv6Protocol
	}
	for _, p := range b.PortMappings {
		switch {
		case p.Flags&hcn.LocalRoutedVIP != 0:
			kind = "NodePort"
		case p.Flags&hcn.VIPExternalIP != 0:
			kind = "ExternalIP"
		}
	}
	return [2]string{string(family), kind}
}

func count(in *prometheus.CounterVec, of [2]string, err error) {
	if err == nil {
		return
	}
	code := "other"
	if e, ok := errors.AsType[*hcn.Error](err); ok {
		code = fmt.Sprintf("%#08x", e.Code)
	}
	in.WithLabelValues(of[0], of[1], code).Inc()
}

func (c *countedHNS) CreateLoadBalancer(ctx context.Context, b hcn.LoadBalancer) (id string, err error) {
	id, err = c.hnsClient.CreateLoadBalancer(ctx, b)
	count(c.create, describe(&b), err)
	return id, err
}

func (c *countedHNS) ModifyLoadBalancer(ctx context.Context, b hcn.LoadBalancer) error {
	err := c.hnsClient.ModifyLoadBalancer(ctx, b)
	count(c.update, describe(&b), err)
	return err
}

// DeleteLoadBalancer counts no failure if there is no such load balancer.
func (c *countedHNS) DeleteLoadBalancer(ctx context.Context, id string) error {
	err := c.hnsClient.DeleteLoadBalancer(ctx, id)
	if err == nil || errors.Is(err, hcn.ErrNotFound) {
		return err
	}
	of := [2]string{"unknown", "unknown"}
	if b, err := c.hnsClient.LoadBalancer(ctx, id); err == nil {
		of = describe(&b)
	}
	count(c.remove, of, err)
	return err
}
