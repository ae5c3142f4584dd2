// Package host opens the sockets of the userspace backend in its network namespace, and reaches
// endpoints from any address of the node. On Linux, it also looks up routes.
package host
