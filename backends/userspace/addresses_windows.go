package userspace

import (
	"os"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/backends/userspace/internal/winaddr"
)

// netshPatience bounds each run of netsh.
const netshPatience = 30 * time.Second

// systemManager returns what changes the addresses of the interface.
func (o *AddressOptions) systemManager(identity backends.Identity) (addresses.Manager, error) {
	o.complete(identity, os.Getenv)
	if o.Netsh {
		return winaddr.SystemNetsh(o.Interface, netshPatience)
	}
	return winaddr.NewIPHelper(o.Interface)
}
