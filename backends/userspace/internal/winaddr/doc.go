// Package winaddr changes the addresses of an interface of Windows: by the IP helper API, or by the
// program netsh. Addresses that it adds are not the source of other connections of the node, and
// do not outlive a restart of the node.
package winaddr
