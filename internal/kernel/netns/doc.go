// Package netns makes Linux network namespaces and connects them, for tests on a
// real kernel and for programs that demonstrate a service proxy without touching
// the machine's own network.
//
// A namespace has no name and no file: it exists as long as its [NS] is open or
// it has a process or a socket, so nothing is left over, not even after a crash.
// [Link] connects two of them by a pair of virtual Ethernet interfaces; methods of NS
// set addresses, routes, neighbours and sysctls. A socket stays in the namespace in
// which it was made, so Listen, ListenPacket and Dial return ordinary connections that
// any goroutine may use.
//
// Making a namespace needs privileges. [Privileged] gets them without root by
// running the program again in a user namespace, by the program unshare:
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
