package userspace

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// AddressOptions are the options of the capture [Addresses].
type AddressOptions struct {
	// Interface is the name of the interface to which addresses are added. Empty means the
	// value of the environment variable INTERFACE_TO_ADD_SERVICE_IP; if that is empty, too,
	// "vEthernet (HNS Internal NIC)". Call Cleanup with the former interface before you
	// change it.
	Interface string
	// Netsh has the program netsh change addresses. Otherwise, the IP helper API does, which
	// takes far less time.
	Netsh bool
	// State is the path of the file that records which addresses were added, so that the next
	// process can remove them. Empty means a file in the folder vipkit of %ProgramData%, named
	// after the identity.
	State string

	manager addresses.Manager // nil for that of the system
	usable  time.Duration     // zero for the constant

	namespace addresses.Namespace
}

const (
	defaultInterface  = "vEthernet (HNS Internal NIC)"
	interfaceVariable = "INTERFACE_TO_ADD_SERVICE_IP"
)

// complete fills in defaults.
func (o *AddressOptions) complete(identity backends.Identity, getenv func(string) string) {
	o.Interface = cmp.Or(o.Interface, getenv(interfaceVariable), defaultInterface)
	if o.State == "" {
		o.State = filepath.Join(getenv("ProgramData"), "vipkit", identity.Name+".addresses")
	}
}

// usable is how long an address may take until sockets can listen at it; Windows tries for 3 s
// whether another host uses it.
const usable = 10 * time.Second

// openAddresses returns a backend with the capture [Addresses].
func (o *Options) openAddresses() (b *Backend, err error) {
	manager := o.Addresses.manager
	if manager == nil {
		if manager, err = o.Addresses.systemManager(o.Identity); err != nil {
			return nil, err
		}
	}
	c := addresses.New(addresses.Config{
		Namespace: o.Addresses.namespace, Manager: manager, State: o.Addresses.State, Families: o.Families,
		AwaitEndpoints: o.Hooks.FirstConnection != nil, Usable: cmp.Or(o.Addresses.usable, usable),
	})
	b = &Backend{listeners: c, inner: backends.New(c.Render, backends.Target[addresses.Key, addresses.Value](c))}
	config := o.engineConfig(c)
	if config.Descriptors, err = descriptorLimit(); err == nil {
		b.engine, err = engine.New(config)
	}
	if err != nil {
		return nil, err
	}
	c.ServeBy(b.engine, &b.wg)
	return b, nil
}
