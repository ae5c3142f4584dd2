package ipvs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/proxy"
)

// SchedulerAnnotation is the annotation of a Service that chooses the scheduler of its virtual
// servers, as ipvsadm names it. Flags of the scheduler follow, separated by commas: with
// "mh,mh-port" or "sh,sh-port", connections of one client go to several endpoints, because the
// client's port counts too. The flags mh-fallback and sh-fallback are always set.
// [proxy.TrackerOptions] must name the annotation.
const SchedulerAnnotation = "vipkit.github.io/ipvs-scheduler"

// Schedulers that choose by a hash: of the client's address, of the address of the Service, and Maglev's of
// the client's. Services with session affinity have the last one: it chooses the same real servers at all
// addresses of a service port.
const (
	schedulerSH = "sh"
	schedulerDH = "dh"
	schedulerMH = "mh"
)

// Flags of a virtual server.
const (
	// flagPersistent sends a client to the real server of its earlier connections until the timeout.
	flagPersistent uint32 = 1 << 0
	// flagFallback, "mh-fallback" and "sh-fallback" of ipvsadm, selects another real server if
	// the real server of the hash has weight 0. Without it mh and sh refuse the connection. dh refuses it
	// always, and the other schedulers never.
	flagFallback uint32 = 1 << 3
	// flagPort, "mh-port" and "sh-port" of ipvsadm, includes the port of the client in the hash.
	flagPort uint32 = 1 << 4
)

// Schedulers returns the names of the schedulers that Linux has.
func Schedulers() []string {
	return []string{
		"rr", "wrr", "lc", "wlc", "lblc", "lblcr", schedulerSH, schedulerDH, "sed", "nq", schedulerMH, "fo", "ovf",
	}
}

// refusesAtZero reports whether a scheduler refuses clients of real servers of weight 0.
func refusesAtZero(name string) bool { return name == schedulerDH }

// schedulerValue returns the value of a virtual server with a scheduler. Without the flag
// fallback, sh and mh would do what refusesAtZero reports.
func schedulerValue(name string) value {
	v := value{scheduler: name}
	if name == schedulerSH || name == schedulerMH {
		v.flags = flagFallback
	}
	return v
}

// parseScheduler returns the value of a virtual server with a scheduler and its flags.
func parseScheduler(text string) (value, error) {
	list := strings.Split(text, ",")
	name := list[0]
	if !slices.Contains(Schedulers(), name) {
		return value{}, fmt.Errorf("unknown IPVS scheduler %.40q, want one of %v", name, Schedulers())
	}
	v := schedulerValue(name)
	for _, flag := range list[1:] {
		suffix, isOwn := strings.CutPrefix(flag, name+"-")
		switch {
		case v.flags == 0:
			return value{}, fmt.Errorf("IPVS scheduler %q has no flags, got %.40q", name, flag)
		case isOwn && suffix == "port":
			v.flags |= flagPort
		case !isOwn || suffix != "fallback": // which is always set
			return value{}, fmt.Errorf("unknown flag %.40q of IPVS scheduler %q, want %[2]s-fallback or %[2]s-port", flag, name)
		}
	}
	return v, nil
}

// schedulerOf returns the value of the virtual servers of a service port without persistence:
// with the scheduler that the Service chooses, or, perhaps with an error, the default. The kernel has the available
// ones.
func (r *renderer) schedulerOf(available []string, port *proxy.ServicePort) (value, error) {
	def := r.scheduler
	if port.Affinity.Enabled() && slices.Contains(available, schedulerMH) {
		def = schedulerValue(schedulerMH)
	}
	text, chosen := port.Annotations[SchedulerAnnotation]
	if !chosen {
		return def, nil
	}
	v, err := parseScheduler(text)
	switch {
	case err != nil:
		return def, err
	case !slices.Contains(available, v.scheduler):
		return def, fmt.Errorf("IPVS scheduler %q is missing: load the kernel module ip_vs_%[1]s and restart", v.scheduler)
	}
	return v, nil
}
