package hns

import "github.com/vipkit/vipkit/backends/kernelspace/hcn"

// library is computenetwork.dll, and one function of vmcompute.dll. What HNS returns as an error is an
// [hcn.Error]; a library or function that Windows lacks is an error that wraps hcn.ErrUnsupported.
type library interface {
	// call calls a function of computenetwork.dll.
	call(c *call) error
	// get calls HNSCall of vmcompute.dll with the method GET, and returns the answer.
	get(path string) (string, error)
	// register calls HcnRegisterServiceCallback. From then on the library calls the function that
	// it was opened with, with the code of each notification.
	register() (registration uintptr, err error)
	// unregister ends a registration. The function is not called any more when it returns.
	unregister(registration uintptr) error
}

// call is a call of a function. All functions take what they need of the fields in the order of the
// fields, and most of them then the place of the error record.
type call struct {
	function string
	// handle is the handle of the object, or of the network of a new endpoint; 0 if the function takes
	// none.
	handle uintptr
	id     *guid
	// text is the settings, or the query; empty if the function takes none.
	text string

	// opened is where the handle goes, and result the text; nil if there is none.
	opened   *uintptr
	result   *string
	noRecord bool
}

// outcome returns the error of a code and an error record. Only a negative HRESULT is a failure.
func outcome(function string, code uint32, record string) error {
	if int32(code) >= 0 && record == "" {
		return nil
	}
	return &hcn.Error{Op: function, Code: code, Record: record}
}
