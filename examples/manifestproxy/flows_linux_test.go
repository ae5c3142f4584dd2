package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// awaitReply sends datagrams by a socket until the wanted server answers.
func awaitReply(t *testing.T, c *lab.Conn, want string) {
	t.Helper()
	var got lab.Answer
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		got, err = c.Ask(ctx) // The kernel may report the ICMP error of an earlier datagram.
		cancel()
		if err == nil && got.Own.String() == want {
			return
		}
	}
	t.Fatalf("server that replies: got %+v, error %v, want %q", got, err, want)
}

// TestDatagramsFollowTheEndpoints checks that a client that sends datagrams all the time, from
// one port, reaches another endpoint when its endpoint was removed.
func TestDatagramsFollowTheEndpoints(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "dns.yaml")
	manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
	write(t, path, manifest)
	p := n.start(t, flags(path)...)
	p.Await("msg=sync", "full=true", "ports=1")
	socket, err := lab.Dial(t.Context(), n.Client, "udp", "10.96.0.53:53")
	testenv.NoError(t, err)
	awaitReply(t, socket, agenttest.Pod1IP+":8053")
	write(t, path, replace(t, manifest, agenttest.Pod1IP, agenttest.Pod2IP))
	awaitReply(t, socket, agenttest.Pod2IP+":8053")
	if err := socket.Close(); err != nil {
		t.Error(err)
	}
	p.Terminate(stopped)
}

// TestDatagramsReachALaterService checks that a client that keeps its port reaches a Service that
// begins after the client has tried its address.
func TestDatagramsReachALaterService(t *testing.T) {
	t.Parallel()
	for _, flag := range [][]string{nil, {"-backend", "userspace", "-capture", "redirect"}, {"-backend", "userspace"}} {
		t.Run(strings.Join(flag, " "), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			path := filepath.Join(t.TempDir(), "dns.yaml")
			manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
			write(t, path, replace(t, manifest, "10.96.0.53", "10.96.0.54"))
			p := n.start(t, append(flags(path), flag...)...)
			p.Await("msg=sync", "full=true", "ports=1")
			socket, err := lab.Dial(t.Context(), n.Client, "udp", "10.96.0.53:53")
			testenv.NoError(t, err)
			for range 5 {
				_, _ = socket.Write([]byte("x")) // The kernel may report ICMP errors.
			}
			write(t, path, manifest)
			awaitReply(t, socket, agenttest.Pod1IP+":8053")
			if err := socket.Close(); err != nil {
				t.Error(err)
			}
			p.Terminate("msg=")
		})
	}
}
