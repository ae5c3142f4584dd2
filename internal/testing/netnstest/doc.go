// Package netnstest helps tests to make network namespaces, to obtain or to drop the
// privileges for that, and to run programs such as nft in them.
//
// On other systems than Linux the package is empty.
package netnstest
