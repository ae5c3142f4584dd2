package simhns

import (
	"context"
	"errors"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/hcnschema"
)

// The kinds of objects.
const (
	kindNetwork      = "Network"
	kindEndpoint     = "Endpoint"
	kindLoadBalancer = "LoadBalancer"
)

func (s *Service) enumerate(ctx context.Context, kind, query string) (string, error) {
	filter, err := hcnschema.Query(query)
	if err != nil {
		return "", err
	}
	var ids []string
	switch kind {
	case kindNetwork:
		var n hcn.Network
		n, err = s.client.Network(ctx, filter.Name)
		if errors.Is(err, hcn.ErrNotFound) {
			return hcnschema.IDsText(nil), nil
		}
		if err != nil {
			return "", err
		}
		ids = []string{n.ID}
		s.mu.Lock()
		s.networks[n.ID] = n
		s.mu.Unlock()
	case kindEndpoint:
		ids, err = s.client.EndpointIDs(ctx, filter.NetworkID)
	case kindLoadBalancer:
		ids, err = s.client.LoadBalancerIDs(ctx)
	}
	return hcnschema.IDsText(ids), err
}

func (s *Service) open(ctx context.Context, o object) (uint64, error) {
	if _, err := s.read(ctx, o); err != nil {
		return 0, err
	}
	return s.put(o), nil
}

func (s *Service) query(ctx context.Context, handle uint64) (string, error) {
	o, err := s.get(handle)
	if err != nil {
		return "", err
	}
	return s.read(ctx, o)
}

// read returns the document of an object.
func (s *Service) read(ctx context.Context, o object) (string, error) {
	switch o.kind {
	case kindNetwork:
		s.mu.Lock()
		defer s.mu.Unlock()
		n, ok := s.networks[o.id]
		if !ok {
			return "", &hcn.Error{Op: "HcnOpenNetwork", Code: hcn.CodeNetworkNotFound}
		}
		return hcnschema.NetworkText(n), nil
	case kindEndpoint:
		e, err := s.client.Endpoint(ctx, o.id)
		return hcnschema.EndpointText(e), err
	}
	b, err := s.client.LoadBalancer(ctx, o.id)
	return hcnschema.LoadBalancerText(b), err
}

func (s *Service) create(ctx context.Context, kind string, c Call) (uint64, error) {
	var id string
	switch kind {
	case kindEndpoint:
		in, err := s.get(c.Handle)
		if err != nil {
			return 0, err
		}
		e, err := hcnschema.Endpoint(c.Text)
		if err != nil {
			return 0, err
		}
		e.NetworkID = in.id
		if id, err = s.client.CreateEndpoint(ctx, e); err != nil {
			return 0, err
		}
	case kindLoadBalancer:
		b, err := hcnschema.LoadBalancer(c.Text)
		if err != nil {
			return 0, err
		}
		if id, err = s.client.CreateLoadBalancer(ctx, b); err != nil {
			return 0, err
		}
	default:
		return 0, &hcn.Error{Op: c.Function, Code: hcn.CodeNotImplemented}
	}
	return s.put(object{kind, id}), nil
}

func (s *Service) modify(ctx context.Context, c Call) error {
	o, err := s.get(c.Handle)
	if err != nil {
		return err
	}
	b, err := hcnschema.LoadBalancer(c.Text)
	if err != nil {
		return err
	}
	if o.kind != kindLoadBalancer {
		return &hcn.Error{Op: c.Function, Code: hcn.CodeNotImplemented}
	}
	b.ID = o.id
	return s.client.ModifyLoadBalancer(ctx, b)
}

func (s *Service) delete(ctx context.Context, o object) error {
	switch o.kind {
	case kindEndpoint:
		return s.client.DeleteEndpoint(ctx, o.id)
	case kindLoadBalancer:
		return s.client.DeleteLoadBalancer(ctx, o.id)
	}
	return &hcn.Error{Op: "HcnDelete" + o.kind, Code: hcn.CodeNotImplemented}
}
