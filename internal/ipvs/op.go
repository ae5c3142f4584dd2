package ipvs

import "net/netip"

// Op is a change of a virtual server or of a destination.
type Op struct {
	command     command
	key         ServiceKey
	config      ServiceConfig
	destination Destination
}

// command is a number of the kernel's interface, IPVS_CMD_NEW_SERVICE and so on.
type command uint8

const (
	newService command = iota + 1
	setService
	delService
	getService
	newDestination
	setDestination
	delDestination
	getDestination
)

const (
	setConfig command = iota + 12
	getConfig
)

// AddService adds a virtual server. It fails with EEXIST if the server exists, and with ENOENT
// if the kernel does not have the scheduler.
func AddService(k ServiceKey, c ServiceConfig) Op {
	return Op{command: newService, key: k, config: c}
}

// SetService changes the whole configuration of a virtual server. It fails with ESRCH if the
// server does not exist, and with ENOENT if the kernel does not have the scheduler.
func SetService(k ServiceKey, c ServiceConfig) Op {
	return Op{command: setService, key: k, config: c}
}

// DelService removes a virtual server with its destinations. It fails with ESRCH if the server
// does not exist.
func DelService(k ServiceKey) Op { return Op{command: delService, key: k} }

// AddDestination adds a destination to a virtual server. It fails with EEXIST if the
// destination exists, and with ESRCH if the server does not.
func AddDestination(k ServiceKey, d Destination) Op {
	return Op{command: newDestination, key: k, destination: d}
}

// SetDestination changes all of a destination but its address. It fails with ENOENT if the
// destination does not exist, and with ESRCH if the server does not.
func SetDestination(k ServiceKey, d Destination) Op {
	return Op{command: setDestination, key: k, destination: d}
}

// DelDestination removes a destination. It fails with ENOENT if the destination does not
// exist, and with ESRCH if the server does not.
func DelDestination(k ServiceKey, addr netip.AddrPort) Op {
	return Op{command: delDestination, key: k, destination: Destination{Addr: addr}}
}

// String says what the operation does, such as "add destination 10.0.0.1:8080 of TCP
// 192.0.2.1:80".
func (o Op) String() string {
	switch o.command {
	case newService:
		return "add virtual server " + o.key.String()
	case setService:
		return "change virtual server " + o.key.String()
	case delService:
		return "remove virtual server " + o.key.String()
	case newDestination:
		return o.ofDestination("add")
	case setDestination:
		return o.ofDestination("change")
	case delDestination:
		return o.ofDestination("remove")
	default:
		return "no operation"
	}
}

func (o Op) ofDestination(verb string) string {
	return verb + " destination " + o.destination.Addr.String() + " of " + o.key.String()
}

// hasScheduler reports whether the kernel looks up a scheduler for the operation.
func (o Op) hasScheduler() bool { return o.command == newService || o.command == setService }
