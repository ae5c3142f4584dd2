// Command quickstart shows a service proxy at work: it builds a small cluster
// out of network namespaces, makes a Service answer at its virtual IP, sends it
// real requests, and changes things.
//
//	go run ./examples/quickstart
//
// It needs Linux and Go, no cluster, and no root where users may make user
// namespaces. The machine's own network stays as it is, and when the program
// ends nothing is left of what it made. It checks what it shows: the exit status
// is 1 if anything is not as it should be.
//
// To see how it is done, read the files in this order:
//
//   - manifest.yaml: the Service and its endpoints; change it and run again
//   - proxy_linux.go: the service proxy, which is what you would write
//   - story_linux.go, steps_linux.go, why_linux.go: what happens, step by step
//   - network_linux.go, client_linux.go: the cluster to try it on
//   - main_linux.go, manifest_linux.go, screen_linux.go: the program around it
package main
