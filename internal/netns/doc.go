// Package netns makes Linux network namespaces and wires them together, for
// tests on a real kernel and for programs that show a service proxy at work
// without touching the machine's own network.
//
// A namespace has no name and no file: it exists as long as its [NS] is open or
// something lives in it, so nothing stays behind, not even after a crash.
// [Link] joins two of them by a pair of virtual Ethernet interfaces; addresses,
// routes, neighbours and sysctls are methods of NS. Sockets stay in the
// namespace that they were made in, so Listen, ListenPacket and Dial give
// ordinary connections that any goroutine may use.
//
// Making a namespace takes privileges. [Privileged] gets them without root by
// running the program again in a user namespace:
//
//	func TestMain(m *testing.M) {
//		status, err := netns.Privileged(m.Run)
//		if err != nil {
//			fmt.Fprintln(os.Stderr, err)
//			status = 1
//		}
//		os.Exit(status)
//	}
//
// On other systems than Linux the package is empty.
package netns
