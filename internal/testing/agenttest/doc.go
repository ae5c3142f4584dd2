// Package agenttest helps to test agents: it makes a node with a client and pods, runs the
// agent as a process on that node, and waits for lines of its log and for its HTTP pages.
//
// On systems other than Linux, it has only [Main] and [AwaitPage].
package agenttest
