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

// How long after a first failure a socket is tried again, how long at most when
// it fails again and again, and how long answers may take when a server closes.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	closeTime  = time.Second
)

var (
	errNoAddress = errors.New("no address of this machine is among those that node ports answer at")
	errCrowded   = errors.New("too many sockets for health check node ports")
)

// place is where a server listens, as [net.Listen] takes it.
type place struct{ network, address string }

func (p place) at(port uint16) place {
	return place{p.network, net.JoinHostPort(p.address, strconv.Itoa(int(port)))}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.network, o.network), cmp.Compare(p.address, o.address))
}

// site is one handler at all its places.
type site struct {
	handler http.Handler
	places  []place
	doors   map[place]*door
	// failures and due count and time the attempts to open what is missing.
	failures int
	due      time.Time
	// reported is the error that was reported last; empty for none.
	reported string
	// shared says that its sockets count among those of Services, crowded that there
	// were too many of them.
	shared, crowded bool
}

// door is one socket and who answers there.
type door struct {
	net.Listener
	http.Server
	// ended says that nobody answers any more.
	ended atomic.Bool
}

// sites are all handlers. They are used by one goroutine.
type sites struct {
	listener listener
	report   func(types.NamespacedName, error)
	sites    map[types.NamespacedName]*site
	// pending are the sites that lack something.
	pending map[types.NamespacedName]*site
	crowd   *crowd
	serving sync.WaitGroup
	// shared are the sockets of Services, and most how many these may be.
	shared, most int
}

// newSites gives sites for a process with so many file descriptors.
func newSites(l listener, report func(types.NamespacedName, error), descriptors int) *sites {
	return &sites{
		listener: l, report: report, crowd: newCrowd(min(maxConns, descriptors/16)), most: descriptors / 4,
		sites: map[types.NamespacedName]*site{}, pending: map[types.NamespacedName]*site{},
	}
}

// set says where a handler is to be. What is not among the places is closed at
// once; what is new waits for open.
func (s *sites) set(name types.NamespacedName, h http.Handler, places []place) {
	x := s.sites[name]
	if x == nil {
		x = &site{handler: h, doors: map[place]*door{}, shared: name.Namespace != ""}
		s.sites[name] = x
	}
	x.places = places
	wanted := make(map[place]bool, len(places))
	for _, p := range places {
		wanted[p] = true
	}
	for p := range x.doors {
		if !wanted[p] {
			s.shut(x, p)
		}
	}
	x.due, x.failures = time.Time{}, 0
	s.pending[name] = x
}

func (s *sites) remove(name types.NamespacedName) {
	x := s.sites[name]
	if x == nil {
		return
	}
	for p := range x.doors {
		s.shut(x, p)
	}
	delete(s.sites, name)
	delete(s.pending, name)
}

// open opens what is missing, as far as it is due: that of the proxy itself before
// that of Services, and these in the order of their names.
func (s *sites) open(ctx context.Context) {
	now := time.Now()
	for _, name := range slices.SortedFunc(maps.Keys(s.pending), compareNames) {
		x := s.pending[name]
		if isFree := x.crowded && s.shared < s.most; x.due.After(now) && !isFree {
			continue
		}
		err := s.openPlaces(ctx, x)
		if ctx.Err() != nil {
			return
		}
		s.tell(name, err)
		if err == nil {
			x.failures = 0
			delete(s.pending, name)
			continue
		}
		x.due = now.Add(min(firstRetry<<min(x.failures, 10), lastRetry))
		x.failures++
	}
}

func (s *sites) openPlaces(ctx context.Context, x *site) error {
	x.crowded = false
	if len(x.places) == 0 {
		return errNoAddress
	}
	var errs []error
	for _, p := range x.places {
		if x.doors[p] != nil {
			continue
		}
		if x.shared && s.shared >= s.most {
			x.crowded = true
			errs = append(errs, fmt.Errorf("%w: there are %d already, a quarter of what RLIMIT_NOFILE allows", errCrowded, s.shared))
			break
		}
		l, err := s.listener.Listen(ctx, p.network, p.address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d := &door{Listener: l, Server: http.Server{
			Handler:           x.handler,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      10 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
			ConnState:         s.crowd.note,
			ErrorLog:          log.New(io.Discard, "", 0), // Bad clients are not worth a line.
		}}
		s.put(x, p, d)
		s.serving.Go(func() {
			_ = d.Serve(l) // It ends with its socket, and then mend makes another.
			d.ended.Store(true)
		})
	}
	return errors.Join(errs...)
}

// put notes the socket of a place, or that there is none any more (nil).
func (s *sites) put(x *site, p place, d *door) {
	by := 1
	if d == nil {
		delete(x.doors, p)
		by = -1
	} else {
		x.doors[p] = d
	}
	if x.shared {
		s.shared += by
	}
}

// mend notes the sockets that have ended by themselves as missing.
func (s *sites) mend() {
	for name, x := range s.sites {
		for p, d := range x.doors {
			if d.ended.Load() {
				s.put(x, p, nil)
				s.pending[name] = x
			}
		}
	}
}

// shut closes a socket before it returns, and its connections when they are
// idle.
func (s *sites) shut(x *site, p place) {
	d := x.doors[p]
	s.put(x, p, nil)
	_ = d.Listener.Close() // It is of no use any more, whatever this says.
	s.serving.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if d.Shutdown(ctx) != nil {
			_ = d.Server.Close()
		}
	})
}

// close closes everything.
func (s *sites) close() {
	for name := range s.sites {
		s.remove(name)
	}
	s.serving.Wait()
}

// due is when open has something to try; zero for never.
func (s *sites) due() time.Time {
	var first time.Time
	for _, x := range s.pending {
		if first.IsZero() || x.due.Before(first) {
			first = x.due
		}
	}
	return first
}

// tell reports an error that was not reported before, and its end.
func (s *sites) tell(name types.NamespacedName, err error) {
	x := s.sites[name]
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == x.reported {
		return
	}
	x.reported = text
	if s.report != nil {
		s.report(name, err)
	}
}
