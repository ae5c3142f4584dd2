package kernelspace_test

import (
	"testing"
)

// A Service goes in, and policies come out; it goes, and so do they.
func TestServiceComesAndGoes(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, local(1), remote(1)), service(2, remote(1)))
	m.want("two Services",
		"endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1; remote 10.1.0.1",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.1.0.1")
	m.apply(service(1, local(1)), service(2, remote(1)))
	m.want("the remote endpoint is shared",
		"endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.1.0.1")
	m.apply()
	m.want("no Service")
}
