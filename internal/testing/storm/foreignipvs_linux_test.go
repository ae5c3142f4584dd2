package storm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/proxy"
)

// ipvsWorld is what a storm of the backend ipvs knows about the node.
type ipvsWorld struct {
	// settings are sysctls, by their files, and foreign are the objects of another program,
	// before the first agent started.
	settings map[string]string
	foreign  string
	// ownerLoss is what agents know their virtual servers by and another program has removed
	// since the last calm: the tag of a server, or its entry of a set.
	ownerLoss string
}

// settings returns the sysctls of a node that the backend may write, by their files.
func (w *world) settings() (map[string]string, error) {
	all := map[string]string{}
	return all, w.node.Do(func() error {
		files, err := filepath.Glob("/proc/sys/net/ipv4/vs/*")
		for _, f := range append(files, forwardFile) {
			text, _ := os.ReadFile(f) // Some cannot be read.
			all[f] = strings.TrimSpace(string(text))
		}
		return err
	})
}

const forwardFile = "/proc/sys/net/ipv4/ip_forward"

// Objects of another program: a virtual server at this address, and this set with this entry.
const (
	foreignServer = "198.18.0.1:80"
	foreignSet    = "FOREIGN"
	foreignEntry  = "198.18.0.1,tcp:80"
)

// prepareIPVS adds objects of another program to the node, which does not forward IPv4 until an
// agent sets that.
func (s *storm) prepareIPVS() error {
	if _, err := s.runOnNode("", "sh", "-c", "echo 0 >"+forwardFile); err != nil {
		return err
	}
	if err := s.addForeign(); err != nil {
		return err
	}
	var errForeign, errSettings error
	s.world.ipvs.foreign, errForeign = s.foreignObjects()
	s.world.ipvs.settings, errSettings = s.world.settings()
	return errors.Join(errForeign, errSettings)
}

// addForeign adds a virtual server, a set and a device of another program.
func (s *storm) addForeign() error {
	for _, command := range []string{
		"ipvsadm -A -t " + foreignServer + " -s wlc -p 77",
		"ipvsadm -a -t " + foreignServer + " -r 198.18.0.2:81 -m -w 5",
		"ipset -exist create " + foreignSet + " hash:ip,port",
		"ipset -exist add " + foreignSet + " " + foreignEntry,
		"ip link add foreign0 type dummy",
	} {
		if _, err := s.runOnNode("", strings.Fields(command)...); err != nil && !strings.Contains(err.Error(), "exists") {
			return err
		}
	}
	return nil
}

// foreignObjects returns the objects of addForeign that exist.
func (s *storm) foreignObjects() (text string, err error) {
	for _, command := range []string{"ipvsadm -Sn", "ipset save " + foreignSet, "ip -o link show foreign0 type dummy"} {
		out, err := s.runOnNode("", strings.Fields(command)...)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(out) {
			words := strings.Fields(line)
			isServer := words[0] == "-A" || words[0] == "-a"
			// The line that creates a set has a random number.
			if words[0] != "create" && (!isServer || words[2] == foreignServer) {
				text += strings.Join(words, " ") + "\n"
			}
		}
	}
	return text, nil
}

// changeForeignServers adds or removes a real server of another program's virtual server, and
// an entry of its set.
func (s *storm) changeForeignServers(n int) {
	server, set := []string{"-a", "-d"}[n%2], []string{"add", "del"}[n%2]
	// Failures do not matter here.
	_, _ = s.runOnNode("", "ipvsadm", server, "-t", foreignServer, "-r", "198.18.0.3:80")
	_, _ = s.runOnNode("", "ipset", "-exist", set, foreignSet, "198.18.0.3,tcp:80")
}

// squat adds a virtual server at an address that a Service may get. If one gets it before the end
// of the fault, the agent cannot serve it there.
func (s *storm) squat(one *step) (func(), error) {
	absent := s.absentAddrs()
	if len(absent) == 0 {
		return nil, nil
	}
	r := rand.New(rand.NewPCG(one.Chance, 0))
	at := netip.AddrPortFrom(objects.OneOf(r, absent...), cluster.ServicePort).String()
	protocol := objects.OneOf(r, "-t", "-u")
	if _, err := s.runOnNode("", "ipvsadm", "-A", protocol, at, "-s", "rr"); err != nil {
		return nil, err
	}
	s.note("a foreign virtual server at %s %s", protocol, at)
	return func() {
		_, _ = s.runOnNode("", "ipvsadm", "-D", protocol, at) // ipvsadm -C may have removed it.
	}, nil
}

// checkForeign checks that the objects of another program are as they were.
func (s *storm) checkForeign() {
	got, err := s.foreignObjects()
	if want := s.world.ipvs.foreign; err != nil || got != want {
		s.judge.violate(invariantForeign, "objects of another program: got %q, error %v, want %q", got, err, want)
	}
}

// checkCleanup checks that Cleanup leaves nothing of the agents.
func (s *storm) checkCleanup() {
	err := s.withBackend(func(b proxy.Backend) error { return b.Cleanup(s.t.Context()) })
	left := ""
	for _, command := range []string{
		"ipvsadm -Sn", "ipset list -n", "ip -o link show type dummy", "iptables-" + s.options.flavour() + "-save", "ip6tables-" + s.options.flavour() + "-save",
	} {
		out, errRun := s.runOnNode("", strings.Fields(command)...)
		err = errors.Join(err, errRun)
		for line := range strings.Lines(out) {
			isServer := strings.HasPrefix(line, "-A -") && !strings.Contains(line, foreignServer)
			if isServer || strings.Contains(strings.ToLower(line), "vipkit") {
				left += line
			}
		}
	}
	if err != nil || left != "" {
		s.judge.violate(invariantCleanup, "Cleanup: got error %v, left\n%.2000s", err, left)
	}
	s.checkForeign()
}
