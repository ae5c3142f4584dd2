package hns

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// Open returns a Client of the HNS of this machine. HNS need not run yet: its methods then report
// [hcn.ErrUnavailable]. The error wraps [hcn.ErrUnsupported] if this Windows has no HNS.
//
// Open few of them: each uses one of about 2000 callbacks that Go can give to Windows, for as long
// as the process runs.
func Open() (*Client, error) { return newClient(openLibrary) }

// dlls is the libraries of the folder System32.
type dlls struct {
	network, compute *windows.LazyDLL
	callback         uintptr
}

func openLibrary(notify func(code uint32)) (library, error) {
	l := &dlls{network: windows.NewLazySystemDLL("computenetwork.dll"), compute: windows.NewLazySystemDLL("vmcompute.dll")}
	for _, dll := range []*windows.LazyDLL{l.network, l.compute} {
		if err := dll.Load(); err != nil {
			return nil, fmt.Errorf("%w: %w", hcn.ErrUnsupported, err)
		}
	}
	// HCN_NOTIFICATION_CALLBACK: type of the notification, context, status and data.
	l.callback = windows.NewCallback(func(code, _, _, _ uintptr) uintptr {
		notify(uint32(code))
		return 0
	})
	return l, nil
}

// invoke calls a function that returns an HRESULT. What its arguments point to is pinned.
func invoke(dll *windows.LazyDLL, function string, args ...uintptr) (code uint32, err error) {
	p := dll.NewProc(function)
	if err := p.Find(); err != nil {
		return 0, fmt.Errorf("%w: %w", hcn.ErrUnsupported, err)
	}
	result, _, _ := p.Call(args...)
	return uint32(result), nil
}

func (l *dlls) call(c *call) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	var args []uintptr
	if c.handle != 0 {
		args = append(args, c.handle)
	}
	if c.id != nil {
		args = append(args, address(&pin, c.id))
	}
	if c.text != "" {
		text, err := windows.UTF16PtrFromString(c.text)
		if err != nil {
			return fmt.Errorf("%s: %w", c.function, err)
		}
		args = append(args, address(&pin, text))
	}
	var handle uintptr
	var result, record *uint16
	if c.opened != nil {
		args = append(args, address(&pin, &handle))
	}
	if c.result != nil {
		args = append(args, address(&pin, &result))
	}
	if !c.noRecord {
		args = append(args, address(&pin, &record))
	}
	code, err := invoke(l.network, c.function, args...)
	if c.opened != nil {
		*c.opened = handle
	}
	if c.result != nil {
		*c.result = take(result)
	}
	if text := take(record); err == nil {
		err = outcome(c.function, code, text)
	}
	return err
}

func (l *dlls) get(path string) (string, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	var answer *uint16
	var args []uintptr
	for _, text := range []string{"GET", path, ""} {
		p, err := windows.UTF16PtrFromString(text)
		if err != nil {
			return "", fmt.Errorf("HNSCall GET %q: %w", path, err)
		}
		args = append(args, address(&pin, p))
	}
	code, err := invoke(l.compute, "HNSCall", append(args, address(&pin, &answer))...)
	text := take(answer)
	if err == nil {
		err = outcome("HNSCall GET "+path, code, "")
	}
	return text, err
}

func (l *dlls) register() (registration uintptr, err error) {
	const function = "HcnRegisterServiceCallback"
	var pin runtime.Pinner
	defer pin.Unpin()
	code, err := invoke(l.network, function, l.callback, 0, address(&pin, &registration))
	if err == nil {
		err = outcome(function, code, "")
	}
	return registration, err
}

func (l *dlls) unregister(registration uintptr) error {
	const function = "HcnUnregisterServiceCallback"
	code, err := invoke(l.network, function, registration)
	if err == nil {
		err = outcome(function, code, "")
	}
	return err
}

// address returns the address of a value, which stays there until pin is unpinned.
func address[T any](pin *runtime.Pinner, value *T) uintptr {
	pin.Pin(value)
	return uintptr(unsafe.Pointer(value))
}

// take returns a text that the library has allocated, and frees it.
func take(text *uint16) string {
	if text == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(text))
	return strings.TrimSpace(windows.UTF16PtrToString(text))
}
