// Package agenttest is what tests of agents need: a node with a client and pods,
// and the agent itself as a process on that node, whose log and pages a test waits for.
//
// On other systems than Linux there are only [Main] and [AwaitPage].
package agenttest
