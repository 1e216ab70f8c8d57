package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

const (
	base = "/api/v1"
	// maxBody bounds a request for one task, whose body may be 1 MiB or what the
	// store takes, in base64, or for many tasks. It takes four times as much memory.
	maxBody  = 24 << 20
	maxSmall = 64 << 10
	// slowest is how long the body of a request may take.
	slowest = 30 * time.Second
)

type api struct {
	huma.API

	svc *service.Core
	log *zap.Logger
}

// op returns an operation.
func op(method, at, id, tag, summary string, change ...func(*huma.Operation)) huma.Operation {
	o := huma.Operation{
		OperationID: id, Method: method, Path: base + at, Summary: summary, Tags: []string{tag},
		MaxBodyBytes: maxSmall, BodyReadTimeout: slowest,
		Errors: []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusServiceUnavailable, http.StatusInternalServerError},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

// large allows bodies with tasks in them.
func large(o *huma.Operation) {
	o.MaxBodyBytes = maxBody
	o.Errors = append(o.Errors, http.StatusRequestEntityTooLarge)
}

// body is an answer.
type body[T any] struct{ Body T }

// answer returns what the service returned as an answer.
func answer[T any](a *api, v T, err error) (*body[T], error) {
	if err != nil {
		return nil, a.problem(err)
	}
	return &body[T]{v}, nil
}

func who(ctx context.Context) service.Identity { return service.CallerOf(ctx).Identity }
