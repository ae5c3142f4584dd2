package agent

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

const podIP = "10.244.1.11"

func node(ip string) *v1.Node { return objects.Node("node-1", "east", ip) }

func service(name, ip string) *v1.Service {
	return objects.Service(name, ip, objects.NodePort(30080), func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeNodePort })
}

func slice(service string, port int32) *discoveryv1.EndpointSlice {
	s := objects.Slice(service+"-1", service, podIP+" @node-1")
	s.Ports[0].Port = &port
	return s
}
