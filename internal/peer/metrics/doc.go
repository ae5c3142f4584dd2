// Package metrics compares the metrics of package prommetrics with those that kube-proxy registers in each
// mode: names, types and labels, as the source of the required version of k8s.io/kubernetes has them.
package metrics
