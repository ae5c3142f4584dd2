package legacytables

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// The rules that a program wrote are read with CAP_NET_ADMIN alone.
func TestRules(t *testing.T) {
	t.Parallel()
	const script = "*filter\n:FORWARD DROP\n-A FORWARD -i eth+ ! -o lo -p tcp -m tcp --dport 80 -m comment --comment hi -j ACCEPT\n" +
		"-A FORWARD ! -p udp -j LOG\nCOMMIT\n"
	for family, program := range map[v1.IPFamily]string{v1.IPv4Protocol: "iptables-legacy-restore", v1.IPv6Protocol: "ip6tables-legacy-restore"} {
		ns := netnstest.NewNS(t)
		if _, err := netnstest.Run(t, ns, script, program); err != nil {
			t.Fatal(err)
		}
		var all []Rule
		err := ns.Do(func() (err error) { all, err = read(t, family); return err })
		if err != nil || len(all) < 5 {
			t.Errorf("%s: got %d rules, error %v, want at least 5", family, len(all), err)
			continue
		}
		for i := range all {
			all[i].Input, all[i].Output = bytes.TrimRight(all[i].Input, "\x00"), bytes.TrimRight(all[i].Output, "\x00")
			for j := range all[i].Matches {
				all[i].Matches[j].Info = nil
			}
		}
		want := []Rule{
			{Input: []byte{}, Output: []byte{}, Verdict: Accept, PolicyOf: unix.NF_INET_LOCAL_IN},
			{Input: []byte("eth+"), Protocol: unix.IPPROTO_TCP, Matches: []Match{{Name: "tcp"}, {Name: "comment"}}, Verdict: Accept, PolicyOf: -1},
			{Input: []byte{}, Output: []byte{}, PolicyOf: -1}, // to LOG
			{Input: []byte{}, Output: []byte{}, Verdict: Drop, PolicyOf: unix.NF_INET_FORWARD},
		}
		testenv.Same(t, want, all[:4], "%s: rules", family)
	}
}

// read reads the table filter on a thread that has CAP_NET_ADMIN, but not CAP_NET_RAW.
func read(t *testing.T, f v1.IPFamily) ([]Rule, error) {
	t.Helper()
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(header, &all[0]); err != nil {
		return nil, err
	}
	less := all
	less[0].Effective &^= 1 << unix.CAP_NET_RAW
	if err := unix.Capset(header, &less[0]); err != nil {
		return nil, err
	}
	defer func() {
		if err := unix.Capset(header, &all[0]); err != nil {
			t.Error(err)
		}
	}()
	return Rules(f, "filter")
}

// Any bytes are either rules within their bounds, or an error.
func FuzzRead(f *testing.F) {
	for _, l := range [...]layout{layout4(), layout6()} {
		one := make([]byte, l.matches+2*extensionSize+8)
		binary.NativeEndian.PutUint16(one[l.target:], uint16(l.matches+extensionSize))
		binary.NativeEndian.PutUint16(one[l.target+2:], uint16(len(one)))
		binary.NativeEndian.PutUint16(one[l.matches:], extensionSize)
		f.Add(bytes.Repeat(one, 2))
		for _, offset := range []int{l.target, l.target + 2, l.matches} {
			for _, size := range []uint16{0, 1, uint16(l.matches + extensionSize), uint16(len(one) + 1)} {
				bad := bytes.Clone(one)
				binary.NativeEndian.PutUint16(bad[offset:], size)
				f.Add(bad)
			}
		}
	}
	f.Fuzz(func(t *testing.T, table []byte) {
		for _, l := range [...]layout{layout4(), layout6()} {
			all, err := l.read(table, []uint32{0})
			if most := len(table) / (l.matches + extensionSize); len(all) > most || err != nil && all != nil {
				t.Errorf("%d bytes: got %d rules, error %v, want at most %d or an error", len(table), len(all), err, most)
			}
			for i, r := range all {
				if (r.PolicyOf == 0) != (i == 0) {
					t.Errorf("rule %d: got the policy of hook %d, want that of 0 for the first rule only", i, r.PolicyOf)
				}
			}
		}
	})
}
