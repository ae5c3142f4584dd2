package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// firstRetry and lastRetry are the delays of a retry to open a socket after the first failure,
// and after many; closeTime is how long a server may write replies while it closes.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	closeTime  = time.Second
)

var errNoAddress = errors.New("no address of this node is selected for node ports (nodePortAddresses)")

// hostPort is where a server listens, as [net.Listen] takes it.
type hostPort struct{ network, address string }

func (p hostPort) at(port uint16) hostPort {
	return hostPort{p.network, net.JoinHostPort(p.address, strconv.Itoa(int(port)))}
}

func (p hostPort) compare(o hostPort) int {
	return cmp.Or(cmp.Compare(p.network, o.network), cmp.Compare(p.address, o.address))
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// checkServer is one handler and its sockets.
type checkServer struct {
	handler   http.Handler
	hostPorts []hostPort
	sockets   map[hostPort]*socket
	// failures counts the failed attempts to open missing sockets; the next one is at due.
	failures int
	due      time.Time
	// err is the error of the last attempt, which was reported.
	err error
}

// socket is one socket and its server.
type socket struct {
	net.Listener
	http.Server
	// ended says that the server has stopped.
	ended atomic.Bool
}

// checkServers are all servers. One goroutine uses them.
type checkServers struct {
	listener listener
	report   func(types.NamespacedName, error)
	byName   map[types.NamespacedName]*checkServer
	conns    *connLimit
	serving  sync.WaitGroup
	// shared is the number of sockets of Services, limit the most that they may have.
	shared, limit int
}

// newCheckServers returns the servers of a process with a limit of file descriptors.
func newCheckServers(l listener, report func(types.NamespacedName, error), descriptors int) *checkServers {
	return &checkServers{
		listener: l, report: report, conns: newConnLimit(min(maxConns, descriptors/16)), limit: descriptors / 4,
		byName: map[types.NamespacedName]*checkServer{},
	}
}

// set sets the addresses where a handler is served. It closes other sockets of the handler at
// once; open opens the missing ones.
func (s *checkServers) set(name types.NamespacedName, h http.Handler, hostPorts []hostPort) {
	x := s.byName[name]
	if x == nil {
		x = &checkServer{handler: h, sockets: map[hostPort]*socket{}}
		s.byName[name] = x
	}
	x.hostPorts, x.due, x.failures = hostPorts, time.Time{}, 0
	for p, d := range x.sockets {
		if !slices.Contains(hostPorts, p) {
			delete(x.sockets, p)
			s.shut(d)
		}
	}
}

func (s *checkServers) remove(name types.NamespacedName) {
	if x := s.byName[name]; x != nil {
		s.set(name, x.handler, nil)
		delete(s.byName, name)
	}
}

// open opens the sockets that are missing, or have ended, and are due: the sockets of the proxy itself
// before the sockets of Services, and these in the order of their names. It returns when the next
// one is due; zero for never.
func (s *checkServers) open(ctx context.Context) (next time.Time) {
	now := time.Now()
	for _, name := range s.missing() {
		x := s.byName[name]
		if !x.due.After(now) {
			err := s.listenAll(ctx, name, x)
			if ctx.Err() != nil {
				return time.Time{}
			}
			s.record(name, x, err)
		}
		if x.err != nil && (next.IsZero() || x.due.Before(next)) {
			next = x.due
		}
	}
	return next
}

// missing returns the names of those that lack sockets, in order, and of those with an error
// that is to be cleared. It counts the sockets of Services.
func (s *checkServers) missing() (names []types.NamespacedName) {
	s.shared = 0
	for name, x := range s.byName {
		maps.DeleteFunc(x.sockets, func(_ hostPort, d *socket) bool { return d.ended.Load() })
		if name.Namespace != "" {
			s.shared += len(x.sockets)
		}
		if len(x.sockets) < max(1, len(x.hostPorts)) || x.err != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, compareNames)
	return names
}

func (s *checkServers) listenAll(ctx context.Context, name types.NamespacedName, x *checkServer) error {
	if len(x.hostPorts) == 0 {
		return errNoAddress
	}
	var errs []error
	for _, p := range x.hostPorts {
		if x.sockets[p] != nil {
			continue
		}
		if name.Namespace != "" && s.shared >= s.limit {
			errs = append(errs, fmt.Errorf("too many health check node ports: they use %d sockets, a quarter of RLIMIT_NOFILE: raise it", s.shared))
			break
		}
		l, err := s.listener.Listen(ctx, p.network, p.address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		x.sockets[p] = s.serve(l, x.handler)
		if name.Namespace != "" {
			s.shared++
		}
	}
	return errors.Join(errs...)
}

func (s *checkServers) serve(l net.Listener, h http.Handler) *socket {
	d := &socket{Listener: l, Server: http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnState:         s.conns.note,
		ErrorLog:          log.New(io.Discard, "", 0), // Errors of clients are not logged.
	}}
	s.serving.Go(func() {
		_ = d.Serve(l) // It ends with its socket, and open replaces it.
		d.ended.Store(true)
	})
	return d
}

// record records the result of an attempt. It reports a new error, and the end of one.
func (s *checkServers) record(name types.NamespacedName, x *checkServer, err error) {
	isNew := fmt.Sprint(err) != fmt.Sprint(x.err)
	x.err = err
	if err == nil {
		x.failures = 0
	} else {
		x.due = time.Now().Add(min(firstRetry<<min(x.failures, 10), lastRetry))
		x.failures++
	}
	if isNew && s.report != nil {
		s.report(name, err)
	}
}

// shut closes a socket before it returns, and its connections when they are idle.
func (s *checkServers) shut(d *socket) {
	_ = d.Listener.Close() // The socket is not used any more, whatever this returns.
	s.serving.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if d.Shutdown(ctx) != nil {
			_ = d.Server.Close()
		}
	})
}

// close closes everything.
func (s *checkServers) close() {
	for name := range s.byName {
		s.remove(name)
	}
	s.serving.Wait()
}
