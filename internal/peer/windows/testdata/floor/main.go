// Command floor is the least that a TCP proxy does: accept, dial, copy both ways. What it reaches under
// Wine is what tests compare the backend with.
//
//	floor 192.0.2.1:8081 10.244.1.11:8080 10.244.2.11:8080
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: floor LISTEN ENDPOINT...")
		os.Exit(2)
	}
	l, err := net.Listen("tcp4", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		client, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go serve(client, os.Args[2+i%(len(os.Args)-2)])
	}
}

// serve copies both ways until the server has sent everything.
func serve(client net.Conn, endpoint string) {
	defer func() { _ = client.Close() }() // The client notices missing data.
	server, err := net.Dial("tcp4", endpoint)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	go func() {
		_, _ = io.Copy(server, client) // It ends with the connection.
	}()
	_, _ = io.Copy(client, server)
	_ = server.Close()
}
