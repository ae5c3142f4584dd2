package winaddr

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// The row has the layout of the API: the family and the address at the start, the rest after 28
// bytes of address.
func TestRows(t *testing.T) {
	for addr, want := range map[string]struct {
		begin  []byte
		prefix uint8
	}{
		"10.96.0.10": {[]byte{windows.AF_INET, 0, 0, 0, 10, 96, 0, 10, 0}, 32},
		"fd00::10":   {[]byte{windows.AF_INET6, 0, 0, 0, 0, 0, 0, 0, 0xfd, 0}, 128},
	} {
		var row windows.MibUnicastIpAddressRow
		fill(&row, 7, netip.MustParseAddr(addr))
		got := unsafe.Slice((*byte)(unsafe.Pointer(&row)), unsafe.Sizeof(row))
		if string(got[:len(want.begin)]) != string(want.begin) || row.OnLinkPrefixLength != want.prefix || row.SkipAsSource != 1 || row.InterfaceIndex != 7 {
			t.Errorf("%s: got %v", addr, got)
		}
		if offset := unsafe.Offsetof(row.InterfaceLuid); offset != 32 {
			t.Errorf("offset of the interface: got %d, want 32", offset)
		}
	}
}

func TestStatus(t *testing.T) {
	for status, want := range map[windows.Errno]error{
		0: nil, windows.ERROR_OBJECT_ALREADY_EXISTS: fs.ErrExist, windows.ERROR_ACCESS_DENIED: backends.ErrUnavailable, windows.ERROR_NOT_FOUND: windows.ERROR_NOT_FOUND,
	} {
		if got := statusError("Create", status); !errors.Is(got, want) {
			t.Errorf("status %d: got error %v, want %v", status, got, want)
		}
	}
}

// The API exists, or its absence is reported as such.
func TestIPHelper(t *testing.T) {
	if h, err := NewIPHelper("some interface"); err != nil && !errors.Is(err, proxy.ErrUnsupported) || err == nil && h == nil {
		t.Errorf("got error %v, want none or %v", err, proxy.ErrUnsupported)
	}
}
