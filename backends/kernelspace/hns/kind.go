package hns

import (
	"errors"

	"github.com/vipkit/vipkit/internal/hcnschema"
)

// kind is a kind of objects: the part of the names of its functions.
type kind string

const (
	network      kind = "Network"
	endpoint     kind = "Endpoint"
	loadBalancer kind = "LoadBalancer"
)

func (k kind) list(l library, f hcnschema.Filter) ([]string, error) {
	var text string
	if err := l.call(&call{function: "HcnEnumerate" + string(k) + "s", text: hcnschema.QueryText(f), result: &text}); err != nil {
		return nil, err
	}
	return hcnschema.IDs(text)
}

// read returns the document of an object.
func (k kind) read(l library, id string) (text string, err error) {
	err = k.open(l, id, func(handle uintptr) error {
		text, err = k.query(l, handle)
		return err
	})
	return text, err
}

// create makes an object and returns its document, because HNS chooses the ID. in is the handle of
// the network of an endpoint, and otherwise 0. An error of reading the object is none of HNS any more: it
// must not say that nothing was done.
func (k kind) create(l library, in uintptr, settings string) (text string, err error) {
	c := &call{function: "HcnCreate" + string(k), handle: in, id: new(guid), text: settings}
	err = k.use(l, c, func(handle uintptr) error {
		if text, err = k.query(l, handle); err != nil {
			return errors.New("made, but not read: " + err.Error())
		}
		return nil
	})
	return text, err
}

func (k kind) modify(l library, id, settings string) error {
	return k.open(l, id, func(handle uintptr) error {
		return l.call(&call{function: "HcnModify" + string(k), handle: handle, text: settings})
	})
}

func (k kind) delete(l library, id string) error {
	g, err := parseGUID(id)
	if err != nil {
		return err
	}
	return l.call(&call{function: "HcnDelete" + string(k), id: g})
}

// open has do work with the handle of an object.
func (k kind) open(l library, id string, do func(handle uintptr) error) error {
	g, err := parseGUID(id)
	if err != nil {
		return err
	}
	return k.use(l, &call{function: "HcnOpen" + string(k), id: g}, do)
}

// use makes a call that returns a handle, has do work with it, and closes it. A call that failed may
// have returned one too.
func (k kind) use(l library, c *call, do func(handle uintptr) error) error {
	var handle uintptr
	c.opened = &handle
	err := l.call(c)
	if err == nil {
		err = do(handle)
	}
	if handle != 0 {
		// If this fails, HNS has lost a handle, but what do has done is done.
		_ = l.call(&call{function: "HcnClose" + string(k), handle: handle, noRecord: true})
	}
	return err
}

func (k kind) query(l library, handle uintptr) (text string, err error) {
	err = l.call(&call{
		function: "HcnQuery" + string(k) + "Properties", handle: handle,
		text: hcnschema.QueryText(hcnschema.Filter{}), result: &text,
	})
	return text, err
}
