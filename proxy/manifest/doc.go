// Package manifest reads Services, EndpointSlices and Nodes from YAML and JSON
// files and passes them to a tracker, for a proxy without an API server: for tests,
// for static set-ups and for replaying the objects of a cluster.
//
// # What is read
//
// [Watcher].Path is a file, or a folder whose files that end in .yaml, .yml or
// .json are read. Subfolders and hidden files are not read. A file is in UTF-8. It has any number of YAML
// documents, each of which begins with a line ---, or JSON values. Each document is
//
//   - a Service (v1), an EndpointSlice (discovery.k8s.io/v1) or a Node (v1),
//   - a List, ServiceList, EndpointSliceList or NodeList of them, just as
//     kubectl get services,endpointslices,nodes -A prints it with -o yaml or
//     -o json,
//   - or of any other kind, which is ignored and counted in [Summary]; a kind whose name
//     is almost a known one, such as Servce, is an error.
//
// Fields that this version does not know are ignored, with a warning. A missing namespace
// is "default", a missing protocol TCP, a missing name of an EndpointSlice's port
// the empty name, as in the API server. No other default is filled in, and managedFields are dropped.
// A duplicate key in a YAML mapping is an error; keys that << merges may be overridden. YAML is version 1.2: yes
// and no are texts.
//
// # Errors
//
// A document or list item that cannot be read is reported as a [DocumentError]
// with its file and line; everything else is read. Of JSON the line is that where the outermost
// value begins, and YAML that does not parse is not split into list items. While a file has such an
// error, objects that it had before and lacks now are kept, so that a
// half-written file deletes nothing. When the file has no error any more, the objects
// that it lacks are deleted. Deleting a file deletes its objects. If Path itself is
// missing or cannot be read, all objects stay.
//
// Of duplicate objects the first one is used, in the order of file names and then of
// lines; the others are reported.
//
// # Services that claim the same address
//
// Of two Services with a creation timestamp, the older one gets an address that both claim. Objects of
// files mostly have none: then the Service that has the address keeps it, and the snapshot's Problems name
// the other one. When a program starts, no Service has an address yet. Services are then handed over in the
// order in which their files were changed last, in seconds, and then by file name and line, and the first
// one gets the address. So a restart changes owners only if the file of the old owner was written again
// after the file of the other Service.
//
// # Detecting changes
//
// A Watcher checks the files every [Watcher].Interval: the listing of the folder and, of each
// file, after symbolic links, modification time, size and identity. So ConfigMap volumes,
// network file systems and editors that rename all work. A change counts when two checks in
// a row see the same files, the second of them a tenth of the interval after the first, so
// that an unfinished write is no deletion. A file that changes all the time keeps
// the objects it had, and delays the others by at most ten intervals.
// Only objects whose content changed are handed over.
//
// # Limits
//
// A file may have 256 MiB and 1,048,576 objects. A YAML document, also a List, may have 8 MiB, and 16 MiB with its
// aliases expanded; JSON is read several times faster and has no such limit. The first 100 errors and
// warnings of a file are reported, and the number of the others.
package manifest
