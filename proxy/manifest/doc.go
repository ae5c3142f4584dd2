// Package manifest reads Services, EndpointSlices and Nodes from YAML and JSON
// files and hands them to a tracker: a proxy that works without an API server,
// for tests, for static set-ups and for replaying what a cluster looked like.
//
// # What is read
//
// [Source].Path is a file, or a folder whose files that end in .yaml, .yml or
// .json are read. Folders in it are not entered; hidden files and what editors
// leave behind (web.yaml~, #web.yaml#, .web.yaml.swp) do not count. A file holds
// any number of YAML documents or JSON values, and each of them is
//
//   - a Service (v1), an EndpointSlice (discovery.k8s.io/v1) or a Node (v1),
//   - a List, ServiceList, EndpointSliceList or NodeList of them, just as
//     kubectl get services,endpointslices,nodes -A prints it with -o yaml or
//     -o json,
//   - or of any other kind, which is passed over and counted in [Summary].
//
// Fields that this version does not know are ignored. A missing namespace is
// "default", a missing protocol TCP, a missing name of an EndpointSlice's port
// the empty name, as the API server has it. No other field is filled in, and
// managedFields are dropped. A key that stands twice in a YAML mapping is an error,
// except in documents with merge keys (<<), whose mappings may override what
// they merged.
//
// # What happens when something is wrong
//
// A document or list item that cannot be read is reported as a [DocumentError]
// with its file and line; everything else counts. As long as a file has such an
// error, objects that it held before and that are not seen now stay, so that a
// half-written file takes nothing down. When the file is good again, what is
// not in it is deleted. A file that is deleted deletes its objects. When
// Path itself is missing or cannot be read, all objects stay.
//
// An object that stands twice is taken from the first place, in the order of
// file names and then of lines; each further place is reported.
//
// # Services that want the same address
//
// Objects of files mostly have no creation timestamp, so age does not say which of two Services
// gets an address that both want. A tracker leaves it with the one that has it, whatever is done
// to its file: a new file, or one that is edited, takes nothing from a Service that works, is
// named in the snapshot's Problems, and gets the address when the other one goes. Of two that
// both have a timestamp the older one gets it.
//
// Nobody has anything when a program starts. Services are then handed over in the order in which
// their files were changed last, those of one second by file name and line, and the first one
// gets the address. So a restart changes owners only where the file of the old one was written
// again after the newcomer came; creation timestamps in the files rule that out.
//
// # How changes are seen
//
// Files are looked at every [Source].Interval: the folder's listing, and of each
// file, behind all symbolic links, modification time, size and identity. So
// replaced ConfigMap volumes, network file systems and editors that rename all
// work. A change counts when two looks in a row see the same, the second of
// them a tenth of the interval after the first: nobody's unfinished write is taken
// for a deletion. Only objects whose content differs from what the handler was
// told last are handed over.
//
// # Limits
//
// A file may have 256 MiB and 1,048,576 objects, and what the YAML parser
// takes at once 4 MiB: a document, or one item of a List in the usual block
// style. YAML aliases may make up to 16 MiB out of that. JSON is read several
// times faster than YAML and has no such limit. Nothing is read of a List with
// more items than a file may have objects. The first 100 errors of a file are
// told, and how many more there are.
package manifest
