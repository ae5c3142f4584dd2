package backendtest

import (
	"embed"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

//go:embed scenarios/*.txtar
var scenarioFiles embed.FS

// scenario is a set of objects with the expected outcomes of packets. It is written
// for IPv4, and also tested with IPv6.
//
// The comment of the file describes it. Its sections are options (see parseOption),
// objects.yaml, expect (a table with the outcomes of packets from each host to the
// frontends of the single Service) and probes (lines of source, destination and
// outcome). Frontends are tested with TCP and UDP.
//
// An outcome is L, L2, R, R2 (the endpoint of the pod local, local2, remote, remote2)
// or H (the node's own network), with m if the endpoint sees the node's address and
// not the client's, and + between endpoints that must all be seen; the prefix 1: says
// that one client sees only one of them. REJ is a TCP reset or an ICMP error, DROP silence, and FALL
// means that the packet passes unchanged.
type scenario struct {
	name    string
	title   string
	options proxy.TrackerOptions
	objects cluster.Objects
	cases   []scenarioCase
}

// scenarioCase is a packet with the outcome that the scenario expects.
type scenarioCase struct {
	from cluster.Name
	to   netip.AddrPort
	icmp bool
	want string
	// line names the packet as in the file's section, for messages.
	line string
}

// scenarios parses all scenarios of the suite.
func scenarios() ([]*scenario, error) {
	files, err := scenarioFiles.ReadDir("scenarios")
	if err != nil {
		return nil, err
	}
	var out []*scenario
	for _, f := range files {
		data, err := scenarioFiles.ReadFile(path.Join("scenarios", f.Name()))
		if err != nil {
			return nil, err
		}
		s, err := parseScenario(strings.TrimSuffix(f.Name(), ".txtar"), data)
		if err != nil {
			return nil, fmt.Errorf("scenario %s: %w", f.Name(), err)
		}
		out = append(out, s)
	}
	return out, nil
}

func parseScenario(name string, data []byte) (*scenario, error) {
	archive := txtar.Parse(data)
	s := &scenario{name: name, title: strings.TrimSpace(string(archive.Comment)), options: nodeOptions()}
	for _, f := range archive.Files {
		var err error
		text := string(f.Data)
		switch f.Name {
		case "options":
			s.options, err = parseOptions(text)
		case "objects.yaml":
			s.objects, err = parseObjects(f.Data)
		case "expect":
			err = s.parseExpect(text)
		case "probes":
			err = s.parseProbes(text)
		default:
			err = fmt.Errorf("unknown section")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if len(s.cases) == 0 {
		return nil, fmt.Errorf("no packets with expected outcomes")
	}
	return s, nil
}

// parseExpect parses the table of a scenario with a single Service.
func (s *scenario) parseExpect(text string) error {
	var columns []string
	for line := range strings.Lines(text) {
		cells := strings.Fields(line)
		switch {
		case len(cells) == 0:
		case columns == nil:
			columns = cells
		case len(cells) != len(columns):
			return fmt.Errorf("%q: got %d cells, want %d", line, len(cells), len(columns))
		default:
			for i := 1; i < len(cells); i++ {
				to, err := frontend(&s.objects, columns[i])
				if err != nil {
					return err
				}
				s.cases = append(s.cases, scenarioCase{
					from: cluster.Name(cells[0]), to: to, want: cells[i], line: cells[0] + " to " + columns[i],
				})
			}
		}
	}
	return nil
}

func (s *scenario) parseProbes(text string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			return fmt.Errorf("%q: want source, destination, outcome", line)
		}
		c := scenarioCase{from: cluster.Name(f[0]), want: f[2], line: f[0] + " to " + f[1]}
		addr, isICMP := strings.CutSuffix(f[1], "/icmp")
		if isICMP {
			c.icmp = true
			addr += ":0"
		}
		to, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		c.to = to
		s.cases = append(s.cases, c)
	}
	return nil
}

// hasAffinity reports whether a Service of the scenario has session affinity.
func (s *scenario) hasAffinity() bool {
	return slices.ContainsFunc(s.objects.Services, func(x *v1.Service) bool {
		return x.Spec.SessionAffinity == v1.ServiceAffinityClientIP
	})
}

// hasPodInterfaces reports whether the scenario recognizes pods by their interface.
func (s *scenario) hasPodInterfaces() bool {
	return s.options.LocalTraffic.Interface != "" || s.options.LocalTraffic.InterfacePrefix != ""
}

// flights returns the packets of all cases.
func (s *scenario) flights() (all []flight) {
	for i := range s.cases {
		all = append(all, s.cases[i].flights()...)
	}
	return all
}

// flights returns the packets of a case, in both families.
func (c *scenarioCase) flights() (all []flight) {
	protocols := transports()
	if c.icmp {
		protocols = []v1.Protocol{lab.ICMP}
	}
	for _, to := range []netip.AddrPort{c.to, netip.AddrPortFrom(cluster.IPv6Of(c.to.Addr()), c.to.Port())} {
		for _, protocol := range protocols {
			all = append(all, flight{from: c.from, to: to, protocol: protocol})
		}
	}
	return all
}

// code formats a verdict as scenarios do.
func (b *testbed) code(v proxy.Verdict, family v1.IPFamily) string {
	switch v.Action {
	case proxy.Pass:
		return "FALL"
	case proxy.Reject:
		return "REJ"
	case proxy.Drop:
		return "DROP"
	case proxy.Forward:
	}
	var codes []string
	for _, letter := range endpointLetters() {
		for _, e := range v.Endpoints {
			if e.Addr != netip.AddrPortFrom(b.host(letter.at).Addr(family), cluster.EndpointPort) {
				continue
			}
			code := letter.letter
			if e.Masquerade {
				code += "m"
			}
			codes = append(codes, code)
		}
	}
	joined := strings.Join(codes, "+")
	if len(codes) != len(v.Endpoints) {
		joined += "+" + strconv.Itoa(len(v.Endpoints)-len(codes)) + " others"
	}
	if v.Affinity.Enabled() {
		return "1:" + joined
	}
	return joined
}

type endpointLetter struct {
	letter string
	at     cluster.Name
}

func endpointLetters() []endpointLetter {
	return []endpointLetter{
		{"L", cluster.Local}, {"L2", cluster.Local2}, {"R", cluster.Remote}, {"R2", cluster.Remote2}, {"H", cluster.Node},
	}
}
