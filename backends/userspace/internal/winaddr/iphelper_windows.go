package winaddr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// SystemNetsh returns the netsh of the system.
func SystemNetsh(iface string, patience time.Duration) (*Netsh, error) {
	folder, err := windows.GetSystemDirectory()
	if err != nil {
		return nil, err
	}
	return &Netsh{Program: filepath.Join(folder, "netsh.exe"), Interface: iface, Patience: patience}, nil
}

// IPHelper changes addresses by the IP helper API.
type IPHelper struct {
	iface                      string
	initialize, create, remove *windows.LazyProc
}

// NewIPHelper returns an IPHelper for the interface with a name. It fails with
// [proxy.ErrUnsupported] if the system has no such API.
func NewIPHelper(iface string) (*IPHelper, error) {
	dll := windows.NewLazySystemDLL("iphlpapi.dll")
	h := &IPHelper{
		iface:      iface,
		initialize: dll.NewProc("InitializeUnicastIpAddressEntry"),
		create:     dll.NewProc("CreateUnicastIpAddressEntry"),
		remove:     dll.NewProc("DeleteUnicastIpAddressEntry"),
	}
	for _, p := range []*windows.LazyProc{h.initialize, h.create, h.remove} {
		if err := p.Find(); err != nil {
			return nil, fmt.Errorf("%w: the IP helper API: %w", proxy.ErrUnsupported, err)
		}
	}
	return h, nil
}

// Addresses returns the addresses of the host.
func (h *IPHelper) Addresses(context.Context) ([]netip.Addr, error) { return hostAddresses() }

// Add adds an address. The error wraps [fs.ErrExist] if the host has it already.
func (h *IPHelper) Add(_ context.Context, a netip.Addr) error {
	return h.call(h.create, a)
}

// Remove removes an address.
func (h *IPHelper) Remove(_ context.Context, a netip.Addr) error {
	return h.call(h.remove, a)
}

func (h *IPHelper) call(what *windows.LazyProc, a netip.Addr) error {
	i, err := find(h.iface)
	if err != nil {
		return err
	}
	var row windows.MibUnicastIpAddressRow
	_, _, _ = h.initialize.Call(uintptr(unsafe.Pointer(&row))) // It has no result.
	fill(&row, uint32(i.Index), a)
	status, _, _ := what.Call(uintptr(unsafe.Pointer(&row))) // The result has the error.
	return statusError(what.Name, windows.Errno(status))
}

// fill fills in an address and its interface. The address is usable at once: that no other host
// has it follows from who allocates the addresses of Services.
func fill(row *windows.MibUnicastIpAddressRow, iface uint32, a netip.Addr) {
	row.InterfaceIndex = iface
	row.OnLinkPrefixLength = uint8(a.BitLen())
	row.SkipAsSource = 1
	row.DadState = windows.IpDadStatePreferred
	if a.Is6() {
		row.Address = windows.RawSockaddrInet6{Family: windows.AF_INET6, Addr: a.As16()}
		return
	}
	four := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
	*four = windows.RawSockaddrInet4{Family: windows.AF_INET, Addr: a.As4()}
}

// statusError returns the error of a call; nil if it has succeeded.
func statusError(call string, status windows.Errno) error {
	if status == 0 {
		return nil
	}
	err := fmt.Errorf("%s: %w", call, status)
	switch {
	case errors.Is(status, windows.ERROR_OBJECT_ALREADY_EXISTS):
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	case errors.Is(status, windows.ERROR_ACCESS_DENIED):
		return fmt.Errorf("%w: run as an administrator: %w", backends.ErrUnavailable, err)
	default:
		return err
	}
}
