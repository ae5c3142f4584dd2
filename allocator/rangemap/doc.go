// Package rangemap reads and writes the allocation maps that Kubernetes keeps in
// etcd: RangeAllocation objects, of which every cluster has one for its node ports
// (/registry/ranges/servicenodeports), and older ones have one for each family of
// ClusterIPs (/registry/ranges/serviceips and secondaryserviceips).
//
// A map is a number: bit i says that the i-th key of the range is taken. Its bytes
// have the highest first and no leading zeros. It has no owners, and covers only the
// first 65,536 addresses of an IPv6 range.
package rangemap
