package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/agenttest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// echoAddress serves datagrams: the reply to each is the address of the server.
func (n network) echoAddress(t *testing.T, at string) {
	t.Helper()
	socket, err := n.Pods.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1)
		for {
			_, from, err := socket.ReadFrom(buf)
			if err != nil {
				return // The socket has been closed.
			}
			_, _ = socket.WriteTo([]byte(at), from) // The client repeats lost datagrams.
		}
	}()
	t.Cleanup(func() {
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}

// awaitReply sends datagrams by a socket until it gets the wanted reply.
func awaitReply(t *testing.T, socket net.Conn, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, buf := "", make([]byte, 64)
	for ctx.Err() == nil {
		_ = socket.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := socket.Write([]byte("x"))
		if err != nil {
			continue // The kernel reports the ICMP error of an earlier datagram.
		}
		size, err := socket.Read(buf)
		if err != nil {
			continue
		}
		if got = string(buf[:size]); got == want {
			return
		}
	}
	t.Fatalf("server that replies: got %q, want %q", got, want)
}

// TestDatagramsFollowTheEndpoints checks that a client that sends datagrams all the time, from
// one port, reaches another endpoint when its endpoint was removed.
func TestDatagramsFollowTheEndpoints(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	for _, at := range []string{agenttest.Pod1IP, agenttest.Pod2IP} {
		n.echoAddress(t, net.JoinHostPort(at, "8053"))
	}
	path := filepath.Join(t.TempDir(), "dns.yaml")
	manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
	write(t, path, manifest)
	p := n.start(t, flags(path)...)
	p.Await("msg=sync", "full=true", "ports=1")
	socket, err := n.Client.Dial(t.Context(), "udp", "10.96.0.53:53")
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
			n.echoAddress(t, net.JoinHostPort(agenttest.Pod1IP, "8053"))
			path := filepath.Join(t.TempDir(), "dns.yaml")
			manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
			write(t, path, replace(t, manifest, "10.96.0.53", "10.96.0.54"))
			p := n.start(t, append(flags(path), flag...)...)
			p.Await("msg=sync", "full=true", "ports=1")
			socket, err := n.Client.Dial(t.Context(), "udp", "10.96.0.53:53")
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
