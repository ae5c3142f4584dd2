package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/pause"
)

//go:embed demo/web.yaml
var demoManifest []byte

const (
	demoAddress = "192.0.2.1" // of the node
	demoPods    = "10.244.0.0/16"
	demoService = "http://10.96.0.10/"
)

// demoServers are the endpoints of the demo's Service.
func demoServers() []string { return []string{"10.244.1.11:8080", "10.244.2.11:8080"} }

// demonstrate runs the program in a network namespace of its own, with the endpoints of its
// manifest, and sends requests to the Service. The exit status is 1 if it does not answer.
func demonstrate(o options, stderr io.Writer) int {
	code, err := netns.Isolated(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		log := newLog(stderr)
		return status(runDemo(ctx, o, log), log)
	})
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err) // The status tells it too.
		return 1
	}
	return code
}

// runDemo makes the node and its endpoints and runs the program until ctx ends, or until it is
// clear that the Service does not answer.
func runDemo(ctx context.Context, o options, log logr.Logger) (err error) {
	dir, err := os.MkdirTemp("", "manifestproxy-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.manifests, o.tracker.NodeName = filepath.Join(dir, "web.yaml"), demoNodeName
	if err := os.WriteFile(o.manifests, demoManifest, 0o644); err != nil {
		return err
	}
	o.tracker.NodeAddresses = []netip.Addr{netip.MustParseAddr(demoAddress)}
	o.tracker.LocalTraffic.Sources = []netip.Prefix{netip.MustParsePrefix(demoPods)}
	if err := demoNode(); err != nil {
		return fmt.Errorf("making the node of the demo: %w", err)
	}
	for _, at := range demoServers() {
		server, err := serveDemo(ctx, at)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
	}
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if err := askDemo(running, log, o.manifests); err != nil {
			cancel(err)
		}
	}()
	err = act(running, o, log)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(running)
	}
	return err
}

// demoNode gives the addresses of the node and of its endpoints to the loopback interface, over
// which everything goes.
func demoNode() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, text := range append([]string{demoAddress + ":0"}, demoServers()...) {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: netip.MustParseAddrPort(text).Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}}
		if err := netlink.AddrAdd(lo, address); err != nil {
			return err
		}
	}
	everywhere := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere, Src: net.ParseIP(demoAddress)}
	if err := netlink.RouteAdd(route); err != nil {
		return err
	}
	node, err := netns.Current()
	if err != nil {
		return err
	}
	return errors.Join(node.Forward(), node.Close())
}

// serveDemo runs an endpoint, which answers with its address.
func serveDemo(ctx context.Context, at string) (io.Closer, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, at+"\n") // After an error there is no client to answer.
		}),
	}
	go func() { _ = server.Serve(listener) }() // If Serve ends early, requests fail.
	return server, nil
}

// askDemo sends requests to the Service until both endpoints have answered, and logs their answers. The first one
// may take as long as a slow node needs for its rules.
func askDemo(ctx context.Context, log logr.Logger, path string) error {
	const patience = 30 * time.Second
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := &http.Client{Timeout: 200 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	answers := map[string]int{}
	for len(answers) < len(demoServers()) {
		answer, err := askOnce(limited, client)
		if err == nil {
			answers[answer]++
			continue
		}
		if pause.For(limited, 50*time.Millisecond) != nil {
			return fmt.Errorf("the Service of the demo does not answer: %w", err)
		}
	}
	log.Info("demo: the Service has answered; each connection goes to an endpoint by chance", "at", demoService, "answers", answers)
	log.Info("demo: a request of your own, from another terminal", "command", fmt.Sprintf("sudo nsenter -t %d -n curl %s", os.Getpid(), demoService))
	log.Info("demo: change the file and see what the program does; Ctrl-C ends it and removes everything", "file", path)
	return nil
}

// askOnce sends one request, on a connection of its own.
func askOnce(ctx context.Context, client *http.Client) (answer string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, demoService, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fscanln(response.Body, &answer)
	return answer, errors.Join(err, response.Body.Close())
}
