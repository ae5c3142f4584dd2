package simhns_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"unicode/utf16"

	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/simhns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a service with the address where it answers.
type served struct {
	*simhns.Service
	sim     *hcntest.Sim
	address string
}

func serve(t *testing.T) *served {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	sim := hcntest.New(hcn.Version{Major: 9, Minor: 5}, netip.MustParseAddr("192.0.2.1"))
	return &served{simhns.Start(t, sim, listener), sim, listener.Addr().String()}
}

// send sends the bytes of a call, as computenetwork.c does.
func (s *served) send(t *testing.T, function string, id string, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	words := utf16.Encode([]rune(text))
	guid, err := hex.DecodeString(id)
	testenv.NoError(t, err)
	le := binary.LittleEndian
	b := append([]byte(function), make([]byte, 48-len(function))...)
	b = le.AppendUint64(b, 0)
	b = append(b, guid...)
	b = append(b, make([]byte, 16-len(guid))...)
	b = le.AppendUint64(b, uint64(2*len(words)))
	for _, w := range words {
		b = le.AppendUint16(b, w)
	}
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	return conn
}

// reply returns the code and the text of a reply.
func reply(t *testing.T, r io.Reader) (code uint32, text string) {
	t.Helper()
	head := make([]byte, 24)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	body, err := io.ReadAll(r)
	if want := le.Uint32(head[12:]) + le.Uint32(head[16:]); err != nil || len(body) != int(want) {
		t.Fatalf("after the head: got %d bytes, %v, want %d", len(body), err, want)
	}
	words := make([]uint16, le.Uint32(head[12:])/2)
	testenv.NoError(t, binary.Read(bytes.NewReader(body), le, words))
	return le.Uint32(head[8:]), string(utf16.Decode(words))
}

func TestServe(t *testing.T) {
	s := serve(t)
	want := `{"Success":true,"Output":{"Major":9,"Minor":5}}`
	if code, got := reply(t, s.send(t, "HNSCall GET /globals/version", "", "")); code != 0 || got != want {
		t.Errorf("version: got %#x, %s, want %s", code, got, want)
	}
	// No object has the GUID, whose bytes are in the order of Windows.
	var asked simhns.Call
	s.SetFault(func(c simhns.Call) (simhns.Reply, bool) {
		asked = c
		return simhns.Reply{}, false
	})
	code, _ := reply(t, s.send(t, "HcnOpenLoadBalancer", "0403020106050807090a0b0c0d0e0f10", ""))
	if want := "01020304-0506-0708-090a-0b0c0d0e0f10"; code != hcn.CodeElementNotFound || asked.ID != want {
		t.Errorf("open: got %#x for %s, want %#x for %s", code, asked.ID, uint32(hcn.CodeElementNotFound), want)
	}
	code, _ = reply(t, s.send(t, "HcnCreateLoadBalancer", "", `{"FrontendVIPs":["10.96.0.1"],"ID":"é"}`))
	if code != hcn.CodeInvalidParameter || asked.Text != `{"FrontendVIPs":["10.96.0.1"],"ID":"é"}` {
		t.Errorf("create: got %#x for %s, want %#x", code, asked.Text, uint32(hcn.CodeInvalidParameter))
	}
	for _, function := range []string{"HcnCreateNetwork", "HcnDeleteNetwork", "HcnPaint", ""} {
		if code, _ := reply(t, s.send(t, function, "", "")); code != hcn.CodeNotImplemented {
			t.Errorf("%q: got %#x, want %#x", function, code, uint32(hcn.CodeNotImplemented))
		}
	}
	if got := s.Functions(); !slices.Contains(got, "HcnPaint") {
		t.Errorf("functions: got %v, want HcnPaint among them", got)
	}
}

func TestNotifications(t *testing.T) {
	s := serve(t)
	conn := s.send(t, "HcnRegisterServiceCallback", "", "")
	if _, err := io.ReadFull(conn, make([]byte, 24)); err != nil {
		t.Fatal(err)
	}
	for event, want := range map[hcn.Event]uint32{hcn.EndpointsChanged: 9, hcn.NetworksChanged: 2, hcn.Disconnected: 0x01000000} {
		s.sim.Notify(event)
		var got uint32
		if err := binary.Read(conn, binary.LittleEndian, &got); got != want || err != nil {
			t.Errorf("event %d: got %#x, %v, want %#x", event, got, err, want)
		}
	}
}

// A program that breaks off, or sends something else, harms nobody.
func TestServeStrangers(t *testing.T) {
	s := serve(t)
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", string(bytes.Repeat([]byte{0xff}, 200))} {
		conn, err := net.Dial("tcp", s.address)
		testenv.NoError(t, err)
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	if code, _ := reply(t, s.send(t, "HcnEnumerateLoadBalancers", "", "{}")); code != 0 {
		t.Errorf("afterwards: got %#x, want 0", code)
	}
}
