// Command quickstart shows a service proxy at work: it builds a small cluster
// out of network namespaces, makes a Service answer at its virtual IP, sends it
// real requests, and changes things.
//
//	go run ./examples/quickstart
//
// It needs Linux and Go, no cluster, and no root if users may make user
// namespaces. It does not change the machine's own network, and removes everything that
// it has made when it ends. It checks what it shows: the exit status is 1 if a check
// fails.
//
// To see how it works, read the files in this order:
//
//   - manifest.yaml: the Service and its endpoints; change it and run again
//   - proxy_linux.go: the service proxy, which is what you would write
//   - story_linux.go: what happens, step by step
//   - cluster_linux.go: the cluster to try it on
//   - main_linux.go: the program around it
package main
