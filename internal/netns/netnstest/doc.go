// Package netnstest gives tests network namespaces, the privileges to make them,
// users without privileges, and the program nft to look into them.
//
// On other systems than Linux the package is empty.
package netnstest
