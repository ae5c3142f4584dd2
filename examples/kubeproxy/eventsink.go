package main

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// apiEvents writes Events of a node to the API server. The recorder of client-go would choose names by
// chance, so that each restart of each node wrote all Events again; and it hides errors.
type apiEvents struct {
	client kubernetes.Interface
	node   string
}

// version lists, and does not get, the Service: the permission to list is there.
func (a *apiEvents) version(ctx context.Context, name types.NamespacedName) (objectVersion, error) {
	found, err := a.client.CoreV1().Services(name.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String(),
	})
	if err != nil || len(found.Items) != 1 {
		return objectVersion{}, err
	}
	return objectVersion{found.Items[0].UID, found.Items[0].ResourceVersion}, nil
}

// create creates the Event, with kube-proxy as its controller.
func (a *apiEvents) create(ctx context.Context, name eventName, n *notice) error {
	namespace := n.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	var series *eventsv1.EventSeries
	if n.written > 0 {
		series = &eventsv1.EventSeries{Count: int32(n.written) + 1, LastObservedTime: metav1.NowMicro()} //nolint:gosec // one in 50 minutes
	}
	_, err := a.client.EventsV1().Events(namespace).Create(ctx, &eventsv1.Event{
		Series:              series,
		ObjectMeta:          metav1.ObjectMeta{Name: name.name, Namespace: namespace},
		EventTime:           metav1.NewMicroTime(n.since),
		ReportingController: component,
		ReportingInstance:   cut(component+"-"+a.node, 128),
		Action:              n.action, Reason: n.reason, Type: n.eventType, Note: cut(n.note, maxNote),
		Regarding: v1.ObjectReference{APIVersion: "v1", Kind: n.kind, Namespace: n.Namespace, Name: n.Name, UID: name.uid},
	}, metav1.CreateOptions{})
	return err
}

// maxNote is the most bytes that a note may have.
const maxNote = 1024

// cut returns at most some bytes of a text, as valid UTF-8.
func cut(text string, most int) string { return strings.ToValidUTF8(text[:min(len(text), most)], "") }
