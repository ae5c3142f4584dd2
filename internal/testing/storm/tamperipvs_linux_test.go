package storm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/objects"
)

// tamperIPVS changes a virtual server, a set, the device or a setting of an agent, by the programs
// of operators.
func (s *storm) tamperIPVS(r *rand.Rand) error {
	const tries = 30
	for range tries {
		choose := objects.OneOf(r, s.serverTampering, s.serverTampering, s.setTampering, s.setTampering, s.deviceTampering, s.settingTampering)
		commands, err := choose(r)
		if err != nil {
			return err
		}
		changed := false
		for _, c := range commands {
			changed = s.keepsOwner(c) && s.runAndRecord("", c...) || changed
		}
		if changed {
			return nil
		}
	}
	return nil // The kernel rejected all attempts.
}

// keepsOwner reports whether an agent still knows whose all virtual servers are after a command:
// once another program has edited them, only sets show that.
func (s *storm) keepsOwner(command []string) bool {
	text := strings.Join(command, " ")
	loss := ""
	switch {
	case strings.HasPrefix(text, "ipvsadm -E"), strings.HasPrefix(text, "ipvsadm -A"):
		loss = "the tag"
	case strings.HasPrefix(text, "ipset flush") && len(command) == 2, command[0] == "ipset" && strings.Contains(text, "IPVS-SERVERS"):
		loss = "the entry"
	default:
		return true
	}
	if s.world.ipvs.ownerLoss != "" && s.world.ipvs.ownerLoss != loss {
		return false
	}
	s.world.ipvs.ownerLoss = loss
	return true
}

// serverTampering returns commands that change a virtual server or a real server.
func (s *storm) serverTampering(r *rand.Rand) ([][]string, error) {
	text, err := s.runOnNode("", "ipvsadm", "-Sn")
	if err != nil {
		return nil, err
	}
	var servers, real [][]string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) < 5 || words[2] == foreignServer:
		case words[0] == "-A":
			servers = append(servers, words[1:])
		default:
			real = append(real, words[1:])
		}
	}
	if len(servers) == 0 || len(real) == 0 {
		return nil, nil
	}
	if r.IntN(2) == 0 {
		return tamperedServer(r, objects.OneOf(r, servers...), servers, objects.OneOf(r, real...)), nil
	}
	return tamperedReal(r, objects.OneOf(r, real...)), nil
}

// before returns the words before an option.
func before(words []string, option string) []string {
	return slices.Clip(words[:max(0, slices.Index(words, option))])
}

// after returns the word after an option.
func after(words []string, option string) string { return words[slices.Index(words, option)+1] }

// ipvsadmOf returns commands about a server with a name.
func ipvsadmOf(name []string) func(action string, words ...string) []string {
	return func(action string, words ...string) []string {
		return append(append([]string{"ipvsadm", action}, name...), words...)
	}
}

func tamperedServer(r *rand.Rand, one []string, all [][]string, real []string) [][]string {
	name := before(one, "-s")
	ipvsadm := ipvsadmOf(name)
	switch r.IntN(6) {
	case 0:
		return [][]string{ipvsadm("-D")}
	case 1:
		return [][]string{ipvsadm("-D"), ipvsadm("-A", one[len(name):]...)}
	case 2:
		return [][]string{ipvsadm("-E", append(one[len(name):], "-p", fmt.Sprint(1+r.IntN(600)))...)}
	case 3:
		return [][]string{ipvsadm("-a", "-r", after(real, "-r"), "-m", "-w", "1")}
	case 4:
		return [][]string{ipvsadm("-E", objects.OneOf(r, all...)[len(name):]...)}
	}
	return [][]string{ipvsadm("-E", "-s", objects.OneOf(r, "rr", "wlc", "sh", "dh", "fo"))}
}

func tamperedReal(r *rand.Rand, one []string) [][]string {
	name := append(before(one, "-r"), "-r", after(one, "-r"))
	ipvsadm := ipvsadmOf(name)
	switch r.IntN(5) {
	case 0:
		return [][]string{ipvsadm("-d")}
	case 1:
		return [][]string{ipvsadm("-e", "-m", "-w", objects.OneOf(r, "0", "2", "1000000"))}
	case 2:
		return [][]string{ipvsadm("-e", "-m", "-w", objects.OneOf(r, "0", "1"), "-x", fmt.Sprint(1+r.IntN(2000)))}
	case 3:
		return [][]string{ipvsadm("-e", objects.OneOf(r, "-g", "-i"), "-w", "1")}
	}
	return [][]string{ipvsadm("-d"), ipvsadm("-a", objects.OneOf(r, "-m", "-g"), "-w", fmt.Sprint(r.IntN(3)))}
}

// setTampering returns commands that change a set or an entry.
func (s *storm) setTampering(r *rand.Rand) ([][]string, error) {
	text, err := s.runOnNode("", "ipset", "save")
	if err != nil {
		return nil, err
	}
	var sets []string
	var entries [][]string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) < 3 || !strings.HasPrefix(words[1], "VIPKIT-"):
		case words[0] == "create":
			sets = append(sets, words[1])
		default:
			entries = append(entries, words[1:])
		}
	}
	if len(sets) == 0 || len(entries) == 0 {
		return nil, nil
	}
	one, other, set := objects.OneOf(r, entries...), objects.OneOf(r, entries...), objects.OneOf(r, sets...)
	ipset := func(words ...string) [][]string { return [][]string{append([]string{"ipset"}, words...)} }
	switch r.IntN(9) {
	case 0, 1:
		return ipset("del", one[0], one[1]), nil
	case 2, 3:
		return ipset("add", set, one[1]), nil // The kernel refuses entries of another type.
	case 4:
		return ipset(append([]string{"-exist", "add", one[0], one[1]}, other[2:]...)...), nil
	case 5:
		option := objects.OneOf(r, []string{"nomatch"}, []string{"skbmark", "0x76500001"})
		return ipset(append([]string{"-exist", "add", one[0], one[1]}, option...)...), nil
	case 6:
		return ipset("flush", one[0]), nil
	case 7:
		return ipset("swap", one[0], set), nil
	}
	return objects.OneOf(r, ipset("destroy", set), append(ipset("flush"), []string{"ipset", "-exist", "add", foreignSet, foreignEntry})), nil
}

// deviceTampering returns commands that change the device or its addresses.
func (s *storm) deviceTampering(r *rand.Rand) ([][]string, error) {
	const device = "vipkit-ipvs0"
	text, err := s.runOnNode("", "ip", "-o", "addr", "show")
	if err != nil {
		return nil, err
	}
	var own []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 3 && words[1] == device {
			own = append(own, words[3])
		}
	}
	ip := func(words ...string) []string { return append(append([]string{"ip"}, words...), "dev", device) }
	switch r.IntN(6) {
	case 0:
		return [][]string{ip("link", "del")}, nil
	case 1:
		return [][]string{ip("link", "set", "up"), ip("link", "set", "down")}[:1+r.IntN(2)], nil
	case 2:
		return [][]string{ip("addr", "flush")}, nil
	case 3:
		absent := s.absentAddrs()
		if len(absent) == 0 {
			return nil, nil
		}
		return [][]string{ip("addr", "add", cluster.Single(objects.OneOf(r, absent...)).String())}, nil
	}
	if len(own) == 0 {
		return nil, nil
	}
	return [][]string{ip("addr", "del", objects.OneOf(r, own...))}, nil
}

// absentAddrs returns addresses that a Service may get and that none has, in order.
func (s *storm) absentAddrs() []netip.Addr {
	snapshot, _, _, _ := s.model.now()
	all := map[netip.Addr]bool{}
	for _, f := range absentFlights(snapshot) {
		all[f.to.Addr()] = true
	}
	for _, f := range flights(snapshot) {
		delete(all, f.to.Addr())
	}
	for _, a := range nodeAddrs() {
		delete(all, a)
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}

// settingTampering returns a command that restores a sysctl which an agent has written.
func (s *storm) settingTampering(r *rand.Rand) ([][]string, error) {
	now, err := s.world.settings()
	if err != nil {
		return nil, err
	}
	var written []string
	for file, value := range s.world.ipvs.settings {
		if now[file] != value {
			written = append(written, file)
		}
	}
	if len(written) == 0 {
		return nil, nil
	}
	slices.Sort(written)
	file := objects.OneOf(r, written...)
	return [][]string{{"sh", "-c", "echo " + s.world.ipvs.settings[file] + " >" + file}}, nil
}
